"""Every view of two answers of SmolLM2 against a forward in NumPy, from its weights and ids alone.

In the float32 mode the engine and the recomputation, which is in float64, differ by rounding alone:
1e-4 of a value after 30 layers, and of weights and shares as much of 1. What is served in the auto
mode is held against its own queries, keys and records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import regex
import torch

from cutaway import LLM
from cutaway.core.grammar import Grammar
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.drafting import Drafting
from cutaway.host import gguf_file
from cutaway.replay.look import Look
from cutaway.text.chat_messages import from_dicts
from cutaway.views import VIEWS
from cutaway.views.parts.replay_values import Wanted
from opened_models import payload
from oracles import smollm2_gguf
from subjects import (
    Inner,
    Numbers,
    answered,
    recomputed,
    rms_norm,
    rotated,
    softmax,
    stacked,
    weights,
)
from trials import patience

pytestmark = [pytest.mark.slow, pytest.mark.oracle]

QUESTIONS = ("What is gravity?", "How do I bake chocolate chip cookies?")
SETTINGS = {"max_tokens": 8, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7}
BASE, LAYERS, WIDTH, HEADS, GROUPS, SIZE, INNER = 1e5, 30, 576, 9, 3, 64, 1536
TAPS = (
    *("embedding.hidden", "blocks.hidden", "blocks.attention.query", "blocks.attention.mixed"),
    *("blocks.attention.gate", "blocks.attention.update", "blocks.mlp.update"),
    *("blocks.mlp.product", "blocks.experts.ids"),
)
HEADER = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n"
)
FOOTER = "<|im_end|>\n<|im_start|>assistant\n"


def opened(llm: LLM, question: str, **settings: Any) -> Look:
    """An answer and all of its inner values, from one replay."""
    messages = [{"role": "user", "content": question}]
    answer = answered(llm.engine, llm.encode_chat(messages), **{**SETTINGS, **settings})
    look = Look(llm.engine, answer, messages=from_dicts(messages))
    layers, count = frozenset(range(LAYERS)), look.subject.num_positions
    rows = frozenset(range(look.subject.num_rows))
    taken = look.take(Wanted(frozenset(TAPS), layers, 0, count, layers, rows))
    assert taken.proof.is_exact, taken.proof
    return look


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", cache_tokens=512, dtype="float32")


@pytest.fixture(scope="module")
def stored(llm: LLM) -> dict[str, Numbers]:
    return weights(llm.engine)


# One in CI: an answer's 36 positions are enough for every view, and a forward takes seconds there.
@pytest.fixture(scope="module", params=QUESTIONS[: patience(2, in_ci=1)])
def look(llm: LLM, request: pytest.FixtureRequest) -> Look:
    return opened(llm, request.param)


@pytest.fixture(scope="module")
def inner(llm: LLM, look: Look) -> Inner:
    return recomputed(llm.engine, look.subject.answer.token_ids[:-1], base=BASE)


@pytest.fixture(scope="module")
def table(stored: dict[str, Numbers]) -> Numbers:
    """[V, D] in float64; rows of embedding and unembedding are the same."""
    return stored["embedding.table.weight"].astype(np.float64)


def logits(stream: Numbers, stored: dict[str, Numbers], table: Numbers) -> Numbers:
    return rms_norm(stream, stored["unembedding.norm.weight"]) @ table.T


def asked(look: Look) -> str:
    assert look.subject.messages is not None
    return str(look.subject.messages[-1].text)


def cosine(left: Numbers, right: Numbers) -> Numbers:
    sizes = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return (left * right).sum(-1) / sizes


def near(shown: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(shown, expected, rtol=rtol, atol=atol)


def test_every_view_is_held_here() -> None:
    held = {name.split("_")[1] for name in globals() if name.startswith("test_")}
    assert {view.name for view in VIEWS} <= held


# Text and tokens


def test_characters_are_those_of_the_question(look: Look) -> None:
    shown, text = payload(look, "characters"), asked(look)
    assert shown.text == text and shown.num_bytes == len(text.encode())
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    np.testing.assert_array_equal(shown.code_points, points)


def test_template_writes_the_rest_of_the_prompt(look: Look) -> None:
    shown, text = payload(look, "template"), asked(look)
    assert "".join(each.text for each in shown.stretches) == HEADER + text + FOOTER
    assert [each.text for each in shown.stretches if each.writer == "conversation"] == [text]
    assert (shown.is_known, shown.num_control) == (True, 5)


def naive_merges(word: str, ranks: dict[tuple[str, str], int]) -> Iterator[tuple[int, list[str]]]:
    """Rank of each merge and the parts after it, by looking through all neighbours each time."""
    parts = list(word)
    while True:
        pairs = [ranks.get(pair, math.inf) for pair in pairwise(parts)]
        best = min(pairs, default=math.inf)
        if best is math.inf:
            return
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        yield int(best), list(parts)


def bpe_files() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    file = gguf_file.read(smollm2_gguf())
    tokens = file.strings("tokenizer.ggml.tokens")
    merges = [each.split(" ") for each in file.strings("tokenizer.ggml.merges")]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
    return {text: token_id for token_id, text in enumerate(tokens)}, ranks


def test_tokens_are_what_merging_by_hand_gives(look: Look) -> None:
    """In the alphabet of the file a blank is U+0120; the question has nothing else to write."""
    shown, (ids, ranks) = payload(look, "tokens"), bpe_files()
    expected: list[int] = []
    for word in regex.findall(r" ?\p{L}+| ?[^\s\p{L}\p{N}]+", asked(look)):
        *_, parts = [[c for c in word], *(p for _, p in naive_merges(_written(word), ranks))]
        expected += [ids[part] for part in parts]
    first = shown.token_ids.index(1, 2) + 3  # behind the second <|im_start|>, `user`, line end
    assert list(shown.token_ids[first : first + len(expected)]) == expected
    assert shown.num_words[0] == len((HEADER + asked(look) + FOOTER).split())


def _written(word: str) -> str:
    return word.replace(" ", "\u0120")


def test_merges_join_the_lowest_rank_first(look: Look) -> None:
    shown, (ids, ranks) = payload(look, "merges"), bpe_files()
    (piece,) = shown.pieces
    longest = max(regex.findall(r" ?\p{L}+", asked(look)), key=len)
    assert piece.text == longest.replace(" ", "\u00b7")
    expected = list(naive_merges(_written(longest), ranks))
    assert [step.rank for step in piece.steps] == [rank for rank, _ in expected]
    for step, (_, parts) in zip(piece.steps, expected, strict=True):
        assert list(step.parts) == [each.replace("\u0120", "\u00b7") for each in parts]
        assert step.token_id in {ids[each] for each in parts}


# Embedding


def test_embeddings_are_rows_of_the_table(look: Look, table: Numbers) -> None:
    shown = payload(look, "embeddings", text="king - man + woman = queen", top=8)
    row, ids = table[shown.token_ids[0]], bpe_files()[0]
    near(shown.first, row[:6], rtol=1e-6)
    cosines = cosine(table, row)
    order = [int(each) for each in np.argsort(-cosines) if each != shown.token_ids[0]][:8]
    assert [each.token_id for each in shown.neighbours] == order
    near([each.cosine for each in shown.neighbours], cosines[order], atol=1e-5)
    near(shown.mean_cosine, cosines.mean(), atol=1e-5)
    window = shown.window
    start, count = window.start, len(window.texts)
    rows = table[list(look.subject.answer.token_ids[start : start + count])]
    near(window.cosines, cosine(rows[:, None], rows[None]), atol=1e-5)
    points = np.concatenate((rows, table[order]))
    points = points - points.mean(0)
    sizes, axes = np.linalg.eigh(points.T @ points)
    near(window.explained, sizes[::-1][:2] / sizes.sum(), atol=1e-5)
    near(np.abs(window.points), np.abs(points @ axes[:, ::-1][:, :2]), atol=1e-4)
    words = [table[ids[f"\u0120{each}"]] for each in ("king", "man", "woman")]
    king, man, woman = (each / np.linalg.norm(each) for each in words)
    near_sum = cosine(table, king - man + woman)
    queen = ids["\u0120queen"]
    assert shown.analogy.expected.token_id == queen
    assert shown.analogy.expected.rank == 1 + (near_sum > near_sum[queen]).sum()
    near(shown.analogy.expected.cosine, near_sum[queen], atol=1e-5)


def test_drift_is_the_cosine_with_where_it_began(look: Look, inner: Inner) -> None:
    shown = payload(look, "drift")
    streams = np.stack(inner.streams)
    near(shown.own, cosine(streams[:, shown.position], streams[0, shown.position]))
    assert shown.other is not None
    near(shown.between, cosine(streams[:, shown.position], streams[:, shown.other]))


# Inside the blocks


def test_positions_turn_by_their_place(look: Look, inner: Inner) -> None:
    shown = payload(look, "positions", layer=3, head=7)
    inverse = BASE ** (-np.arange(32) / 32)
    near(shown.inverse, inverse, rtol=1e-6, atol=0)
    near(np.cos(shown.angles), np.cos(shown.position * inverse), atol=1e-5)
    query, keys = inner.query[3][shown.position, 7], inner.key[3][:, 2]
    near(shown.score, query @ keys[shown.key_position] / 8, atol=1e-3)
    near(shown.shifted, [shown.score] * 3, atol=1e-3)
    # The same key at place 0, and from there as far on as it takes to be so many back.
    placed = np.zeros((len(keys), 1, SIZE))
    half = SIZE // 2
    angle = -shown.key_position * inverse
    left, right = keys[shown.key_position, :half], keys[shown.key_position, half:]
    unturned = np.concatenate(
        (left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle))
    )
    placed[:, 0] = unturned
    turned = rotated(placed, BASE)[:, 0]
    back = np.arange(min(64, shown.position + 1))
    near(shown.by_distance[back], turned[shown.position - back] @ query / 8, atol=1e-3)


def test_attention_looks_where_the_formula_says(look: Look, inner: Inner) -> None:
    for layer, head in ((0, 2), (12, 7), (29, 8)):
        shown = payload(look, "attention", layer=layer, head=head)
        near(shown.weights, inner.weights[layer][head])
        assert shown.group == head // 3
    grid, count = payload(look, "attention"), look.subject.num_positions
    assert (grid.start, grid.end, len(grid.layers)) == (1, count, LAYERS)
    rows, at = np.stack(inner.weights)[:, :, 1:], np.arange(1, count)
    bits = -(rows * np.log2(np.where(rows > 0, rows, 1))).sum(-1).mean(-1)
    near(grid.entropy, bits, atol=1e-3)
    near(grid.first, rows[..., 0].mean(-1))
    near(grid.previous, np.stack(inner.weights)[:, :, at, at - 1].mean(-1))
    near(grid.self, np.stack(inner.weights)[:, :, at, at].mean(-1))


def test_attention_heads_add_their_part(
    look: Look, inner: Inner, stored: dict[str, Numbers]
) -> None:
    grid = payload(look, "attention")
    for layer in (0, 15, 29):
        part = {n.partition(f"blocks.{layer}.")[2]: each for n, each in stored.items()}
        output = stacked(part, "attention.output").reshape(WIDTH, HEADS, SIZE)
        added = np.einsum("thc,dhc->thd", inner.mixed[layer], output)
        near(grid.added[layer], np.linalg.norm(added, axis=-1)[1:].mean(0), rtol=1e-3)


def test_arithmetic_is_that_of_one_query(look: Look, inner: Inner) -> None:
    shown = payload(look, "arithmetic", layer=21, head=4, position=30)
    end = shown.position + 1
    query, keys, values = inner.query[21][30, 4], inner.key[21][:, 1], inner.value[21][:end, 1]
    products = keys[: len(shown.tokens)] @ query
    near(shown.products, products, atol=5e-3)
    near(shown.scaled, products / 8, atol=1e-3)
    shares = softmax(products[:end] / 8)
    near(shown.weights[:end], shares)
    assert not shown.weights[end:].any() and (shown.masked[end:] == -np.inf).all()
    near(shown.contributions[:end], shares * np.linalg.norm(values, axis=-1))
    near(shown.mixed, shares @ values)
    assert shown.is_equal


def test_feedforward_units_are_gate_times_up(
    look: Look, inner: Inner, stored: dict[str, Numbers], table: Numbers
) -> None:
    shown = payload(look, "feedforward", layer=20, top=12)
    at, units = shown.position, shown.units
    near(shown.gate, inner.gate[20][at][units], atol=1e-3)
    near(shown.up, inner.up[20][at][units], atol=1e-3)
    product = inner.product[20][at]
    near(shown.product, product[units], atol=1e-3)
    columns = stacked({n[10:]: e for n, e in stored.items() if n[:10] == "blocks.20."}, "mlp.down")
    added = np.abs(product) * np.linalg.norm(columns.astype(np.float64), axis=0)
    np.testing.assert_array_equal(units, np.argsort(-added)[:12])
    near(shown.added, added[units], rtol=1e-3)
    pushed = logits((np.sign(product) * columns)[:, units].T, stored, table)
    np.testing.assert_array_equal(shown.pushed_ids, np.argsort(-pushed, axis=1)[:, :5])


def test_experts_are_none(look: Look) -> None:
    shown = payload(look, "experts")
    assert shown.layers == () and "each token passes every parameter" in shown.draw().text()


def test_weights_are_counted_one_by_one(look: Look, stored: dict[str, Numbers]) -> None:
    shown = payload(look, "weights", layer=4, text="mlp.down")
    matrix = stored["blocks.4.mlp.down.segments.0.weight"].astype(np.float64)
    assert (shown.rows, shown.columns) == matrix.shape and shown.bits_per_number == 32
    near([shown.mean, shown.deviation], [matrix.mean(), matrix.std()], atol=1e-7)
    assert (shown.least, shown.most) == (matrix.min(), matrix.max())
    counts, _ = np.histogram(matrix, shown.edges.astype(np.float64))
    assert np.abs(shown.counts - counts).sum() <= 8  # an edge is rounded to float32
    sizes = np.abs(matrix).reshape(32, WIDTH // 32, 32, INNER // 32).mean(axis=(1, 3))
    near(shown.thumbnail * shown.thumbnail_scale, sizes, atol=shown.thumbnail_scale)


def test_residual_norms_are_those_of_the_stream(look: Look, inner: Inner) -> None:
    shown = payload(look, "residual", position=9)
    streams = np.stack(inner.streams)[:, 9]
    near(shown.embedding, np.linalg.norm(streams[0]))
    near(shown.stream, np.linalg.norm(streams[1:], axis=-1))
    near(shown.attention, np.linalg.norm(np.stack(inner.attention)[:, 9], axis=-1))
    near(shown.mlp, np.linalg.norm(np.stack(inner.mlp)[:, 9], axis=-1))
    near(shown.cosine, cosine(streams[1:], streams[:-1]))


# Logits and sampling


def test_lens_reads_each_layers_stream(
    look: Look, inner: Inner, stored: dict[str, Numbers], table: Numbers
) -> None:
    shown = payload(look, "lens", top=3)
    streams = np.stack([inner.streams[layer + 1][list(shown.positions)] for layer in shown.layers])
    shares = softmax(logits(streams, stored, table))
    order = np.argsort(-shares, axis=-1)[..., :3]
    np.testing.assert_array_equal(shown.top_token_ids[..., 0], order[..., 0])
    near(shown.top_probabilities, np.take_along_axis(shares, order, -1), atol=1e-3)
    for at, choice in enumerate(shown.choices):
        own = shares[:, at, choice]
        near(shown.choice_probabilities[:, at], own, atol=1e-3)
        ranks = 1 + (shares[:, at] > own[:, None]).sum(-1)
        near(shown.ranks[:, at], ranks, rtol=0.01, atol=1)  # among 49,152 near equals
    near(shown.similarity, cosine(streams, inner.streams[0][list(shown.positions)]))


def test_logits_are_the_forwards_last_row(look: Look, inner: Inner) -> None:
    shown = payload(look, "logits", token=2, top=8)
    row = inner.logits[look.subject.row_position(2)]
    assert shown.logits.shape == row.shape
    near(shown.logits, row, atol=5e-3)
    assert shown.top_token_ids[:8].tolist() == np.argsort(-row)[:8].tolist()
    assert shown.recorded == look.subject.answer.tokens[2].token_id


def test_logits_are_the_whole_row(look: Look, inner: Inner) -> None:
    shown, record = payload(look, "logits", token=5), look.subject.answer.tokens[5]
    row = inner.logits[look.subject.row_position(5)]
    near(shown.logits, row, atol=1e-3)
    likeliest = np.argsort(-row)[:10].tolist()
    assert list(shown.top_token_ids) == list(dict.fromkeys([*likeliest, record.token_id]))
    assert shown.u == record.u and shown.recorded == record.token_id


def test_probabilities_are_the_softmax_of_the_row(look: Look, inner: Inner) -> None:
    token, subject = 2, look.subject
    ids = subject.answer.token_ids[subject.answer.num_prompt_tokens :]
    text = subject.tokenizer.decode(ids[token : token + 2])
    shown = payload(look, "probabilities", token=token, text=text)
    rows = inner.logits[[subject.row_position(token), subject.row_position(token + 1)]]
    shares = softmax(rows)
    order = np.argsort(-shares[0])[:10]
    assert [each.token_id for each in shown.top] == order.tolist()
    near([each.probability for each in shown.top], shares[0][order])
    near(shown.tail_mass, 1 - shares[0][order].sum())
    near(shown.entropy, -(shares[0] * np.log2(shares[0])).sum(), atol=1e-3)
    # The next two tokens looked up as text: the second stands in the row behind the first.
    assert [each.token_id for each in shown.lookups[0].pieces] == list(ids[token : token + 2])
    near(shown.lookups[0].probability, shares[0][ids[token]] * shares[1][ids[token + 1]])
    for below in shown.below:
        near(below.num_entries, (shares[0] < below.probability).sum(), rtol=1e-3)


def test_speculation_has_the_probability_of_each_guess(llm: LLM) -> None:
    """A text that repeats itself is guessed; what stood and what did not is by the draws alone."""
    before = llm.engine.drafting
    llm.engine.drafting = Drafting.of(NGramDrafter())
    try:
        look = opened(llm, "Repeat after me: tick tock, tick tock, tick tock.", max_tokens=16)
    finally:
        llm.engine.drafting = before
    tokens = look.subject.answer.tokens
    told = payload(look, "speculation", token=0)
    assert told.num_guessed > 0
    for step in told.steps:
        shown = payload(look, "speculation", token=step.token)
        rows = look.take(Wanted(rows=frozenset(range(step.token, step.token + step.given)))).rows
        for place, guess in enumerate(shown.row.guesses):
            if guess.verdict == "unused":
                continue
            came = tokens[step.token + place].token_id
            assert (guess.verdict == "accepted") == (guess.token_id == came)
            row = rows[step.token + place].double().numpy()
            near(guess.probability, softmax(row)[guess.token_id], atol=1e-9)


def test_grammar_allows_what_the_form_begins_with(llm: LLM) -> None:
    """At the first step: every token of letters and blanks that is not too long, and no other."""
    look = opened(llm, QUESTIONS[0], max_tokens=2, grammar=Grammar("regex", "[A-Za-z ]{24,30}"))
    shown, tokenizer = payload(look, "grammar", token=0), look.subject.tokenizer
    pattern = regex.compile(rb"[A-Za-z ]{1,30}")
    allowed = np.array(
        [
            each not in tokenizer.control_ids
            and pattern.fullmatch(tokenizer.token_bytes(each)) is not None
            for each in range(tokenizer.vocab_size)
        ]
    )
    assert shown.num_allowed[0] == allowed.sum()
    row = look.take(Wanted(rows=frozenset({0}))).rows[0].double().numpy()
    shares = softmax(row)
    near(shown.row.allowed_mass, shares[allowed].sum(), atol=1e-6)
    best = np.argsort(-np.where(allowed, shares, 0))[:10]
    assert [each.token_id for each in shown.row.allowed] == best.tolist()


def test_sampling_keeps_and_draws_by_sorted_sums(look: Look, inner: Inner) -> None:
    for token in (0, 4):
        shown, record = payload(look, "sampling", token=token), look.subject.answer.tokens[token]
        shares = softmax(inner.logits[look.subject.row_position(token)] / 0.8)
        top_k = np.argsort(-shares)[:40]
        before = np.cumsum(shares[top_k]) - shares[top_k]
        top_p = top_k[before < 0.9 * shares[top_k].sum()]
        kept = {each.name: each.num_kept for each in shown.effects}
        assert (kept["top_k"], kept["top_p"]) == (40, len(top_p))
        assert shown.is_same and record.token_id in top_p
        left = np.zeros_like(shares)
        left[top_p] = shares[top_p] / shares[top_p].sum()
        drawn, high = shown.draw_effect, left.cumsum()[record.token_id]
        near(
            [drawn.low / drawn.total, drawn.high / drawn.total],
            [high - left[record.token_id], high],
        )
        assert drawn.u == record.u
        assert high - left[record.token_id] - 1e-4 <= drawn.u / 2**32 < high + 1e-4


# Stream, cache, time and cost


def test_detokenization_shows_whole_characters(look: Look) -> None:
    shown, subject = payload(look, "detokenization"), look.subject
    data = [subject.tokenizer.token_bytes(each.token_id) for each in subject.answer.tokens]
    sofar = [b"".join(data[: end + 1]).decode(errors="ignore") for end in range(len(data))]
    assert shown.characters.tolist() == [len(text) for text in sofar]
    assert shown.text == sofar[-1] and shown.num_bytes == sum(map(len, data))


def flops(start: int, end: int, rows: int) -> float:
    """Twice the multiplications of positions start to end, of which so many give logits."""
    matrices = WIDTH * (HEADS + 2 * GROUPS) * SIZE + HEADS * SIZE * WIDTH + 3 * WIDTH * INNER
    seen = sum(range(start + 1, end + 1))
    pairs = 2 * HEADS * SIZE * seen
    return 2.0 * (LAYERS * (matrices * (end - start) + pairs) + rows * 49152 * WIDTH)


def test_pages_hold_keys_and_values_of_every_token(look: Look) -> None:
    shown, answer = payload(look, "pages"), look.subject.answer
    count, hit = look.subject.num_positions, answer.admissions[0].num_hit
    assert shown.token_bytes == LAYERS * 2 * GROUPS * SIZE * 4
    assert shown.kept_bytes == count * shown.token_bytes
    (group,) = shown.groups
    origins = Counter[str]()
    for run in group.runs:
        origins[run.origin] += run.count
    assert group.num_pages == math.ceil(count / 16) == sum(origins.values())
    assert origins["found"] == hit // 16
    assert shown.flops == flops(hit, count, len(answer.tokens))
    prompt = answer.num_prompt_tokens
    again = sum(flops(0, length, 1) for length in range(prompt, prompt + len(answer.tokens)))
    assert shown.without_flops == again


def test_timeline_adds_up_to_the_steps(look: Look) -> None:
    shown, subject = payload(look, "timeline"), look.subject
    steps = [subject.ledger.step(number) for number in subject.answer.steps]
    near(shown.total, sum(each.seconds for each in shown.phases), rtol=1e-6)
    near(shown.ended - shown.began, [each.ended - each.began for each in steps], atol=1e-5)
    near(shown.gaps, np.diff([each.ended for each in steps]), atol=1e-5)
    assert shown.num_tokens.sum() + subject.answer.admissions[0].num_hit == subject.num_positions


def test_cost_is_all_of_the_steps_of_one_alone(look: Look) -> None:
    shown, subject = payload(look, "cost", price=3.6), look.subject
    steps = [subject.ledger.step(number) for number in subject.answer.steps]
    near(shown.seconds, sum(each.ended - each.began for each in steps), rtol=1e-6)
    near(shown.token_seconds.sum(), shown.seconds, rtol=1e-5)
    near(shown.money, shown.seconds * 3.6 / 3600, rtol=1e-9, atol=0)
    hit, count = subject.answer.admissions[0].num_hit, subject.num_positions
    near(sum(each.flops for each in shown.stages), flops(hit, count, len(steps)), rtol=1e-12)


# As it is served


@pytest.fixture(scope="module")
def served() -> LLM:
    return LLM("smollm2", cache_tokens=512)


@pytest.mark.parametrize("question", QUESTIONS[: patience(2, in_ci=1)])
def test_what_is_served_in_8_bits_is_told_as_it_was(served: LLM, question: str) -> None:
    look = opened(served, question)
    subject, taken = look.subject, look.take(Wanted(rows=frozenset({1})))
    shown = payload(look, "probabilities", token=1)
    record = subject.answer.tokens[1]
    near(shown.chosen.logprob, record.logit - record.logsumexp, atol=1e-5)
    assert payload(look, "sampling", token=1).is_same
    head = payload(look, "attention", layer=12, head=7)
    query = taken.value("blocks.attention.query", 12)[:, 7].double().numpy()
    keys = taken.stored[12]["key"][:, 2].double().numpy()
    scores = np.where(np.tri(len(query), dtype=bool), query @ keys.T / 8, -np.inf)
    near(head.weights, softmax(scores), atol=1e-5)
    # And it is near what its unpacked weights give: activations of 8 bits cost this much.
    exact = recomputed(served.engine, subject.answer.token_ids[:-1], base=BASE)
    row = torch.stack([look.take(Wanted(rows=frozenset({i}))).rows[i] for i in range(8)])
    ours, theirs = softmax(exact.logits[-8:]), softmax(row.double().numpy())
    divergence = (ours * np.log(ours / theirs)).sum(-1)
    assert divergence.max() < 0.05
