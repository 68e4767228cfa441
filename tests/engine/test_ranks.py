"""One model over several ranks: the same tokens as over one, whatever the architecture."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import torch

import architectures
import services
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.block import Block
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError
from cutaway.core.rank_shares import layer_parts, rank_share, values_of_rank
from cutaway.core.request import Request, SamplingParams
from cutaway.core.work import cache_bytes_per_token
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from cutaway.engine.loading.unloaded_model import open_hf
from cutaway.engine.runner import runner_of
from cutaway.kernels import capture
from cutaway.parallel.rank_group import ThreadGroup
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.dense_stack import DenseStack
from cutaway.weights.find.find import find
from drafters import InTwoMinds
from engines import Answer, engine, run
from thread_ranks import assert_rows_of_one, engine_of_ranks, model_of_ranks

pytest.importorskip("transformers")

# Some of their joined maps are cut by rows, which an estimate cuts one by one.
CUT_AS_ONE = ("gpt2", "qwen3_5")
PROMPTS = [[(7 * i + 3 * n) % 256 for i in range(n)] for n in (5, 41)]


# Heads that several ranks share, and states with experts; all others are tried among the slow.
QUICK = ("llama-flags", "qwen3.5-flags")
CASES = [
    case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
    for case in architectures.CASES
]


@dataclass
class Saved:
    """A model of a case, and what one rank says: computed once for all that is compared with it.

    num_tokens: of an answer. All of many architectures take twenty minutes: CI is told fewer.
    """

    case: str
    folder: Path
    _answers: dict[str, dict[tuple[str, int], list[int]]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return int(os.environ.get("CUTAWAY_RANK_TOKENS", "10" if self.case in QUICK else "5"))

    def answers(self, dtype: str) -> dict[tuple[str, int], list[int]]:
        """To `requests`, in float64 or float32."""
        if dtype not in self._answers:
            whole = load_model(find(str(self.folder)), EngineConfig(device="cpu", dtype=dtype))
            asked = requests(self.num_tokens)
            target = engine(whole, prefill_chunk=16)
            self._answers[dtype] = told(run(target, asked, range(len(asked))))
        return self._answers[dtype]


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    path = tmp_path_factory.mktemp("model")
    architectures.save(architectures.reference(request.param), path)
    return Saved(request.param, path)


@pytest.fixture
def folder(saved: Saved) -> Path:
    return saved.folder


def requests(max_tokens: int) -> list[Request]:
    """Greedy and drawn ones; the second prompts begin alike, so that they hit the cache."""
    chance = random.Random(4)
    found: list[Request] = []
    for number, prompt in enumerate([*PROMPTS, [*PROMPTS[1], 9, 8, 7]]):
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=chance.randrange(2**31),
                logprobs=2,
            )
            request_id = f"r{number}-{temperature}"
            found.append(
                Request(request_id=request_id, prompt_token_ids=tuple(prompt), params=params)
            )
    return found


def told(answers: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], list[int]]:
    return {key: answer.token_ids for key, answer in answers.items()}


def why_whole(model: Transformer, parts: Sequence[range]) -> str:
    """Why its layers are not divided so; empty where they are."""
    if model.layer_inputs is not None:
        return "inputs of their own beside the stream"
    read = {layer: spec.source for layer, spec in enumerate(model.cache_specs)}
    apart = any(read[i] not in (None, *part) for part in parts for i in part)
    return "reads the keys of layer" if apart else ""


@pytest.mark.parametrize(
    ("size", "dtype", "pipeline"), [(4, "float64", 1), (2, "float32", 1), (2, "float64", 2)]
)
def test_scale_t1_s04_s09_ranks_give_the_tokens_of_one(
    saved: Saved, size: int, dtype: str, pipeline: int
) -> None:
    """As many greedy and drawn tokens: batched, chunked and after a hit; alone, with guesses."""
    path, asked = str(saved.folder), requests(saved.num_tokens)
    if pipeline > 1:
        architecture = open_hf(find(path)).architecture
        with torch.device("meta"):
            reason = why_whole(architecture.build(), layer_parts(architecture.shape, 2))
        if reason:
            with pytest.raises(ConfigError, match=reason), model_of_ranks(path, 2, pipeline=2):
                pass
            return
    expected = saved.answers(dtype)
    assert all(len(token_ids) == saved.num_tokens for token_ids in expected.values())
    texts = [[*each.prompt_token_ids, *expected[each.request_id, 0]] for each in asked]
    with model_of_ranks(path, size, dtype=dtype, pipeline=pipeline) as divided:
        target = engine(divided, prefill_chunk=16)
        assert told(run(target, asked, range(len(asked)))) == expected
        target = engine(divided, prefill_chunk=16, drafter=InTwoMinds(texts, 3))
        alone = told(run(target, asked[2:4], [0, 1000]))
        assert alone == {key: expected[key] for key in alone} and len(alone) == 2
        if target.drafting is not None:
            assert sum(target.drafting.tried.values()) > 0


@pytest.mark.parametrize("case", ["llama-flags", "deepseek-v3", "qwen3.5-flags"])
def test_two_stages_of_two_ranks_each_give_the_tokens_of_one(case: str, tmp_path: Path) -> None:
    """Heads that two share, latent rows with experts, and states: divided in both ways at once."""
    architectures.save(architectures.reference(case), tmp_path)
    whole = load_model(find(str(tmp_path)), EngineConfig(device="cpu", dtype="float64"))
    with model_of_ranks(str(tmp_path), 4, dtype="float64", pipeline=2) as divided:
        model, wanted = divided.transformer, requests(max_tokens=24)
        assert model.group is not None and len(model.own_layers) < whole.facts.num_layers
        expected = told(run(engine(whole, prefill_chunk=16), wanted))
        assert told(run(engine(divided, prefill_chunk=16), wanted)) == expected


# Rows as wide as native groups of 32 want them.
WIDE = {"hidden_size": 64, "intermediate_size": 160}


NATIVE = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)
# Norms or matrices that span ranks, experts, latent rows and states; and our own schemes.
ROWS = [
    *(("gpt-oss", "off"), ("deepseek-v3", "off"), ("qwen3.5-flags", "off")),
    *(
        pytest.param(case, quant, marks=pytest.mark.slow)
        for case, quant in (
            *(("olmo2", "off"), ("phi3", "off"), ("cohere-flags", "off"), ("glm4", "off")),
            *(("lfm2", "off"), ("olmoe-flags", "off"), ("nanochat", "off")),
            *(("llama", "int8"), ("olmoe-flags", "int4"), ("llama", "fp8")),
        )
    ),
]


@NATIVE
@pytest.mark.parametrize(("case", "quant"), ROWS)
def test_scale_t2_ranks_of_native_kernels_give_the_bits_of_one(
    case: str, quant: str, tmp_path: Path
) -> None:
    architectures.save(architectures.reference(case, **WIDE), tmp_path)
    size = 2 if case == "qwen3.5-flags" else 3
    is_staged = case in ("deepseek-v3", "qwen3.5-flags")  # they have layers enough
    assert_rows_of_one(str(tmp_path), size, is_staged=is_staged, quant=quant)


def values_in(model: Transformer, whole: dict[str, torch.nn.Parameter]) -> int:
    """Numbers of a rank's matrices, and of what else it has as if that were whole."""
    matrices = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, DenseWeight | DenseStack)
    }
    return sum(
        (each if name in matrices else whole[name]).numel()
        for name, each in model.named_parameters()
    )


def test_an_estimate_of_a_rank_is_what_it_has(folder: Path) -> None:
    """Matrices and pages to the number; vectors and weights of norms by head count whole."""
    architecture = open_hf(find(str(folder))).architecture

    def built(ranks: int) -> Transformer:
        with torch.device("meta"):
            made = architecture.build()
            if ranks > 1:
                made.divide(ThreadGroup.of(ranks)[0])
        return made

    shape, whole = architecture.shape, dict(built(1).named_parameters())
    close = 0.05 if shape.architecture in CUT_AS_ONE else 0.0
    for ranks in (2, 3, 4):
        model = built(ranks)
        values = values_in(model, whole)
        assert values_of_rank(shape, ranks) == pytest.approx(values, rel=close, abs=0)
        share = rank_share(shape, tensor=ranks, weight_bytes=1, kv_dtype="float32")
        assert share.kv_bytes_per_token == cache_bytes_per_token(model, "float32")


def test_an_estimate_of_a_rank_with_layers_is_what_it_has(folder: Path) -> None:
    """Of two stages, whole layers in each or rows of them in two ranks each."""
    architecture = open_hf(find(str(folder))).architecture
    shape = architecture.shape
    parts = layer_parts(shape, 2)
    total = sum(matrix.values for matrix in shape.matrices) + shape.vectors()
    with torch.device("meta"):
        whole = dict(architecture.build().named_parameters())
    for tensor in (1, 2):
        counts: list[int] = []
        for group in ThreadGroup.of(2):
            with torch.device("meta"):
                model = architecture.build()
                if tensor > 1:
                    model.divide(ThreadGroup.of(tensor)[0])
            if why_whole(model, parts):
                return
            model.keep_layers(group, parts, width=shape.width, dtype=torch.float32)
            counts.append(values_in(model, whole))
        share = rank_share(shape, tensor=tensor, pipeline=2, weight_bytes=total, kv_dtype="float32")
        close = 0.05 if tensor > 1 and shape.architecture in CUT_AS_ONE else 0.0
        assert share.weight_bytes == pytest.approx(max(counts), rel=close, abs=0)
        assert tensor > 1 or sum(counts) == total


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return services.make_model(tmp_path_factory.mktemp("tiny"))


def test_who_needs_a_whole_matrix_is_told_and_nobody_waits(tiny_model: str) -> None:
    """A look that a rank computed alone would wait for the others, or be wrong."""
    with engine_of_ranks(tiny_model, 2, dtype="float64") as target:
        model = target.model.transformer
        block = cast(Block, model.blocks[0])
        attention = cast(GroupedAttention, block.attention)
        hidden = torch.zeros(1, 48, dtype=torch.float64)
        for ask in (
            model.check_whole,
            attention.qkv.dense,
            lambda: attention.qkv(hidden),
            lambda: model.embedding.cosines(hidden),
            lambda: model.unembedding.read(hidden),
            lambda: runner_of(
                target.model,
                target.runner.pool,
                config=target.config,
                max_length=64,
                is_plain=True,
            ),
        ):
            with pytest.raises(
                ConfigError, match=r"divided among 2 ranks here\. Start with tensor 1"
            ):
                ask()
        assert told(run(target, requests(4))), "the engine goes on"


@pytest.mark.parametrize(("size", "pipeline"), [(3, 1), (2, 2), (4, 2)])
def test_taps_see_whole_values_and_a_sink_that_raises_parts_no_ranks(
    tiny_model: str, size: int, pipeline: int
) -> None:
    def seen(target: Engine) -> dict[tuple[str, int | None], torch.Tensor]:
        found: dict[tuple[str, int | None], torch.Tensor] = {}

        def sink(name: str, value: torch.Tensor, layer: int | None) -> None:
            found.setdefault((name, layer), value.clone())

        target.sink = sink
        run(target, requests(2)[:1])
        return found

    whole = load_model(find(tiny_model), EngineConfig(device="cpu", dtype="float64"))
    expected = seen(engine(whole))
    with engine_of_ranks(tiny_model, size, dtype="float64", pipeline=pipeline) as target:
        found = seen(target)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key], msg=str(key))

        def broken(name: str, value: torch.Tensor, layer: int | None) -> None:
            raise ZeroDivisionError

        target.sink = broken
        (answer,) = run(target, requests(2)[:1]).values()
        assert answer.last is not None and answer.last.finish_reason == "error"
        target.sink = None
        assert told(run(target, requests(2))), "the ranks are still together"


def test_a_sink_changes_values_of_layers_that_another_rank_has(tiny_model: str) -> None:
    def told_with_changes(target: Engine) -> dict[tuple[str, int], list[int]]:
        def sink(name: str, value: torch.Tensor, layer: int | None) -> torch.Tensor | None:
            return value.flip(-1) if name == "blocks.hidden" and layer == last else None

        target.sink = sink
        return told(run(target, requests(6)))

    whole = load_model(find(tiny_model), EngineConfig(device="cpu", dtype="float64"))
    last = whole.facts.num_layers - 1
    expected = told_with_changes(engine(whole))
    assert expected != told(run(engine(whole), requests(6))), "it matters"
    with engine_of_ranks(tiny_model, 2, dtype="float64", pipeline=2) as target:
        assert last not in target.model.transformer.own_layers
        assert told_with_changes(target) == expected


def test_guesses_by_n_grams_over_ranks_give_the_tokens_of_one(tiny_model: str) -> None:
    whole = load_model(find(tiny_model), EngineConfig(device="cpu", dtype="float64"))
    asked = requests(64)[:1]
    with engine_of_ranks(tiny_model, 2, dtype="float64", drafter=NGramDrafter()) as target:
        assert told(run(target, asked)) == told(run(engine(whole), asked))
        assert target.drafting is not None
        assert sum(target.drafting.tried.values()) > 0, "some of the text came again"


def test_what_reads_layers_of_another_rank_is_refused(tiny_model: str) -> None:
    with engine_of_ranks(tiny_model, 2, dtype="float64", pipeline=2) as target:
        model = target.model.transformer
        with pytest.raises(ConfigError, match=r"all layers, which 2 ranks have .* pipeline 1"):
            model.check_whole()
        with pytest.raises(
            ConfigError, match=r"a layer that another rank has\. Start with pipeline"
        ):
            _ = cast(Block, model.blocks[-1]).mlp
        assert told(run(target, requests(4))), "the engine goes on"
