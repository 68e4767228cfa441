"""Settings that contradict each other: the reference's precedence, and a warning of both."""

from __future__ import annotations

import math
import warnings

import pytest

from cutaway.blocks.positions import LongRope
from cutaway.core.errors import ModelFormatError
from cutaway.models import lfm2
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.rotary_config import from_hf

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_theta": 500.0, "rope_type": "default"}


def test_n11_rope_scaling_wins_beside_rope_parameters() -> None:
    with pytest.warns(UserWarning, match="rope_scaling and rope_parameters"):
        both = from_hf(
            Fields({"rope_parameters": PLAIN, "rope_scaling": YARN}, file="config.json"),
            head_size=16,
            max_length=256,
        )
    alone = from_hf(
        Fields({"rope_scaling": YARN}, file="config.json"), head_size=16, max_length=256
    )
    assert both == alone and both is not None


NESTED = {
    "full_attention": {"rope_theta": 500.0, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 90.0, "rope_type": "default"},
}


@pytest.mark.parametrize(
    "scaling", [{}, {"rope_type": "linear", "factor": 8.0}, {"rope_theta": 70.0}]
)
def test_n11_rope_scaling_changes_the_entry_of_full_layers_as_in_transformers(
    scaling: dict[str, object],
) -> None:
    """Gemma 3 and OLMo 3: rope_parameters has an entry per kind of layer."""
    from transformers import Gemma3TextConfig

    theirs = Gemma3TextConfig(
        rope_parameters={kind: {**entry} for kind, entry in NESTED.items()}, rope_scaling=scaling
    ).rope_parameters
    fields = {"rope_parameters": NESTED, "rope_scaling": scaling}
    for kind in NESTED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            both = from_hf(
                Fields(fields, file="config.json"), head_size=16, max_length=256, kind=kind
            )
        assert both == frequencies(rope_parameters=theirs[kind])


def test_n11_an_entry_that_rope_scaling_changes_is_named() -> None:
    fields = {"rope_parameters": NESTED, "rope_scaling": {"rope_theta": 70.0}}
    words = "rope_scaling.rope_theta and rope_parameters.full_attention.rope_theta"
    with pytest.warns(UserWarning, match=words):
        from_hf(Fields(fields, file="x"), head_size=16, max_length=256, kind="full_attention")


def test_phi3_was_trained_on_4096_tokens_where_its_file_does_not_say() -> None:
    from transformers import Phi3Config

    from cutaway.models import phi3

    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    own = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "vocab_size": 9,
        "max_position_embeddings": 8192,
        "rope_scaling": {"type": "longrope", **factors},
    }
    theirs = Phi3Config(**{**own, "rope_scaling": {"type": "longrope", **factors}})
    trained = theirs.rope_parameters["original_max_position_embeddings"]
    (turning,) = phi3.from_hf(Fields(own, file="config.json")).frequencies
    assert isinstance(turning, LongRope) and turning.trained_length == trained == 4096
    assert turning.attention_factor == pytest.approx(math.sqrt(1 + math.log(2) / math.log(4096)))


@pytest.mark.parametrize("scaling", [None, {}])
def test_n11_nothing_contradicts_a_scaling_that_is_none(scaling: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = from_hf(
            Fields({"rope_parameters": PLAIN, "rope_scaling": scaling}, file="config.json"),
            head_size=16,
            max_length=256,
        )
    plain = from_hf(Fields({"rope_parameters": PLAIN}, file="x"), head_size=16, max_length=256)
    assert given == plain


def frequencies(**fields: object) -> object:
    return from_hf(Fields(fields, file="config.json"), head_size=16, max_length=256)


PAIRS = [
    # what is obeyed, what is not, as transformers reads them
    (
        {"rope_parameters": PLAIN, "rope_theta": 9.0},
        {"rope_parameters": PLAIN},
        "rope_parameters.rope_theta and rope_theta",
    ),
    (
        {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 1.0},
        {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor and partial_rotary_factor",
    ),
    (
        {"rope_scaling": {**YARN, "type": "linear"}},
        {"rope_scaling": YARN},
        "rope_scaling.rope_type and rope_scaling.type",
    ),
    (
        {"rope_scaling": YARN, "original_max_position_embeddings": 32},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 32}},
        "original_max_position_embeddings and rope_scaling.original_max_position_embeddings",
    ),
]


@pytest.mark.parametrize(("both", "alone", "words"), PAIRS)
def test_n11_one_of_two_settings_is_obeyed_and_both_are_named(
    both: dict[str, object], alone: dict[str, object], words: str
) -> None:
    with pytest.warns(UserWarning, match=words):
        given = frequencies(**both)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given == frequencies(**alone)


def test_n11_two_settings_that_agree_are_no_contradiction() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert frequencies(rope_parameters=PLAIN, rope_theta=500.0) == frequencies(
            rope_parameters=PLAIN
        )
        assert frequencies(rope_scaling={**YARN, "type": "yarn"}) == frequencies(rope_scaling=YARN)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"block_ff_dim": 960}, {"intermediate_size": 80}),
        ({"tie_embedding": False}, {"tie_word_embeddings": True}),
    ],
)
def test_n11_lfm2_obeys_its_own_names(first: dict[str, object], second: dict[str, object]) -> None:
    def made(**fields: object) -> lfm2.GroupedDecoder:
        own = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
        return lfm2.from_hf(Fields({"vocab_size": 9, **own, **fields}, file="config.json"))

    (inner,), (outer,) = first, second
    with pytest.warns(UserWarning, match=f"{inner} and {outer}"):
        both = made(**first, **second)
    assert both == made(**first) != made(**second)


@pytest.mark.parametrize("value", [2**63, 1.1e9, -1.0, True, "x"])
def test_a_cap_that_no_kernel_takes_is_refused_by_name(value: object) -> None:
    """A final_logit_softcapping of 2^63 was a fault of ours: row 1 of the plan drew it."""
    fields = Fields({"final_logit_softcapping": value}, file="config.json")
    with pytest.raises(ModelFormatError, match=r"config\.json.*final_logit_softcapping"):
        fields.number_or_none("final_logit_softcapping")


@pytest.mark.parametrize(("value", "cap"), [(30.0, 30.0), (1e9, 1e9), (0, None), (None, None)])
def test_a_cap_within_its_range_is_taken(value: object, cap: float | None) -> None:
    fields = Fields({"final_logit_softcapping": value}, file="config.json")
    assert fields.number_or_none("final_logit_softcapping") == cap
