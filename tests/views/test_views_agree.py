"""Numbers that two stations share are one number, whatever an answer holds.

On fifty answers: emoji, halves of characters, control tokens in prompt and answer, cuts by length,
stop strings; by modules and by native kernels, whose products hang on no company.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.replay.look import Look
from opened_models import llama_engine, look_at, payload
from subjects import engine_of

END = 256  # the byte tokenizer's control token
WORDS = (
    "a",
    "b c",
    "\U0001f30d",
    "e\u0301",
    "\u20ac",
    " ",
    "\n",
    "to be",
    "\U0001f469\u200d\U0001f52c",
)
# What makes a token likely, and what then ends the answer: nothing, its text, or the token itself.
LIKELY = 6.0
ENDS: tuple[dict[str, Any], ...] = (
    {},
    {"logit_bias": {ord("a"): LIKELY}, "stop": ("a", "\u20ac")},
    {"logit_bias": {ord("a"): LIKELY}, "stop": ("aa", "zz")},
    {"logit_bias": {END: LIKELY}, "ignore_eos": True},
    {"logit_bias": {END: LIKELY}, "ignore_eos": False},
)


def opened(engine: Engine, seed: int) -> Look:
    """An answer of a seed: what it is asked, how it is drawn and where it ends are chance."""
    chance = random.Random(seed)
    prompt: list[int] = []
    for _ in range(chance.randint(1, 7)):
        prompt += chance.choice(WORDS).encode()
        prompt += [END] * (chance.random() < 0.3)
    return look_at(
        engine,
        prompt,
        max_tokens=chance.randint(2, 9),
        temperature=chance.choice((0.0, 0.7, 1.0)),
        top_p=chance.choice((0.6, 1.0)),
        top_k=chance.choice((0, 20)),
        seed=seed,
        **{"ignore_eos": True, **chance.choice(ENDS)},
    )


def counts_agree(look: Look) -> None:
    tokens, said = payload(look, "tokens"), payload(look, "detokenization")
    asked, template = payload(look, "characters"), payload(look, "template")
    pages, guesses = payload(look, "pages"), payload(look, "speculation")
    num_prompt, num_all = tokens.num_prompt, len(tokens.token_ids)
    sizes = np.array(tokens.num_bytes)
    assert int(sizes[num_prompt:].sum()) == said.num_bytes, "bytes of the answer"
    assert int(sizes[:num_prompt].sum()) == asked.num_bytes, "bytes of what was asked"
    assert num_all - num_prompt == said.num_tokens == guesses.num_tokens, "tokens of the answer"
    assert num_prompt == template.num_tokens == pages.num_prompt, "tokens of the prompt"
    assert sum(tokens.is_control[:num_prompt]) == template.num_control, "control tokens"
    assert num_all - 1 == pages.num_tokens, "positions that are kept"
    shown = said.text.encode()
    assert len(shown) <= said.num_bytes or "\ufffd" in said.text or said.stopped_by is not None
    cost = payload(look, "cost")
    modes = cost.modes
    assert sum(each.num_tokens for each in modes) + cost.num_cached == pages.num_tokens, "computed"
    assert sum(each.flops for each in modes) == pytest.approx(pages.flops, rel=1e-9), "operations"
    assert sum(each.seconds for each in modes) == pytest.approx(cost.seconds, rel=1e-9), "its time"
    timeline = payload(look, "timeline")
    assert len(timeline.tokens) == said.num_tokens, "tokens of all steps"
    phases, stages = (
        {each.name: each.seconds for each in all_of} for all_of in (timeline.phases, cost.stages)
    )
    for name in ("sampling", "tokens to text"):
        assert stages.pop(name) == pytest.approx(phases[name], rel=1e-6, abs=1e-9), name
    assert sum(stages.values()) == pytest.approx(phases["forward"], rel=1e-6), "the forward"


def chances_agree(look: Look, token: int) -> None:
    tokens = payload(look, "tokens")
    position = tokens.num_prompt + token - 1
    chances, drawn = (
        payload(look, "probabilities", token=token),
        payload(look, "sampling", token=token),
    )
    lens, row = payload(look, "lens", position=position), payload(look, "logits", token=token)
    served = tokens.token_ids[position + 1]
    assert served == chances.chosen.token_id == drawn.recorded == lens.choices[0] == row.recorded
    assert drawn.is_same
    share = chances.chosen.probability
    assert lens.choice_probabilities[-1, 0] == pytest.approx(share, rel=1e-6), "the last layer"
    assert int(lens.ranks[-1, 0]) == chances.chosen.rank
    top = [each.token_id for each in chances.top]
    assert lens.top_token_ids[-1, 0].tolist() == top[: lens.top_token_ids.shape[-1]]
    at = drawn.watched.index(served)
    assert drawn.effects[0].probabilities[at] == pytest.approx(share, rel=1e-6), "before settings"
    if drawn.draw_effect is not None:
        draw = drawn.draw_effect
        wide = (draw.high - draw.low) / draw.total
        assert wide == pytest.approx(drawn.effects[-1].probabilities[at], rel=1e-4, abs=1e-8)


def inside_agrees(look: Look, position: int) -> None:
    ledger, word = (
        payload(look, "residual", position=position),
        payload(look, "embeddings", position=position),
    )
    assert ledger.embedding == pytest.approx(word.norm * (word.multiplier or 1), rel=1e-5)
    place: dict[str, Any] = {"position": position, "layer": 1, "head": 2}
    head, steps = payload(look, "attention", **place), payload(look, "arithmetic", **place)
    row = head.weights[position - head.start]
    np.testing.assert_allclose(steps.weights[: position + 1], row, atol=2e-6)
    assert head.position == steps.position == ledger.position == word.position
    assert (
        head.text
        == steps.text
        == ledger.text
        == word.text
        == payload(look, "tokens").texts[position]
    )


def names_agree(look: Look, position: int) -> None:
    """What stations say of the model, of the token, and of the place that they look at."""
    place: dict[str, Any] = {"position": position}
    seen = {
        name: payload(look, name, **place)
        for name in ("embeddings", "positions", "feedforward", "drift", "residual")
    }
    text = payload(look, "tokens").texts[position]
    assert {(each.position, each.text) for each in seen.values()} == {(position, text)}
    chances, form = payload(look, "probabilities", token=0), payload(look, "grammar")
    sizes = {each.vocab_size for each in (chances, form, seen["embeddings"])}
    assert sizes == {len(payload(look, "logits", token=0).logits)}, "the vocabulary"
    matrix = payload(look, "weights")
    layers = {len(seen["residual"].mlp), len(seen["drift"].own) - 1}
    layers |= {payload(look, "experts").num_layers, payload(look, "timeline").num_layers}
    assert len(layers) == 1, "layers"
    widths = {seen["embeddings"].width, seen["feedforward"].width, matrix.columns}
    assert len(widths) == 1 and form.row is None, "width"
    last = float(np.asarray(seen["drift"].own)[0])
    assert last == pytest.approx(1.0), "a stream begins as its row"


def kinds_of(look: Look) -> set[str]:
    """What is unusual about an answer."""
    said, tokens = payload(look, "detokenization"), payload(look, "tokens")
    prompt, answer = (
        (each[: tokens.num_prompt] for each in (tokens.is_control, tokens.is_part)),
        tokens.is_control[tokens.num_prompt :],
    )
    control, part = prompt
    found = {"control token in the prompt"} if any(control) else set[str]()
    found |= {"half a character in the prompt"} if any(part) else set()
    found |= {"control token in the answer"} if any(answer) else set()
    found |= {"half a character in the answer"} if "\ufffd" in said.text else set()
    found |= {"cut by length"} if said.stopped_by is None else set()
    found |= {"ended by a string"} if isinstance(said.stopped_by, str) else set()
    found |= {"ended by a token"} if isinstance(said.stopped_by, int) else set()
    return found


def all_agree(look: Look) -> set[str]:
    counts_agree(look)
    num_prompt, num_all = look.subject.answer.num_prompt_tokens, len(look.subject.answer.token_ids)
    for token in {0, num_all - num_prompt - 1}:
        chances_agree(look, token)
    inside_agrees(look, num_all - 2)
    names_agree(look, num_all - 2)
    return kinds_of(look)


def test_shared_numbers_are_one_number() -> None:
    engine = engine_of()
    counts = Counter(kind for seed in range(44) for kind in all_agree(opened(engine, seed)))
    assert len(counts) == 7 and min(counts.values()) >= 3, counts


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_shared_numbers_are_one_number_in_fewer_bits(tmp_path: Path) -> None:
    """Where the modules' own products have other last bits than those that were served."""
    engine = llama_engine(tmp_path, dtype="auto", quant="int4-g32")
    for seed in range(44, 50):
        all_agree(opened(engine, seed))
