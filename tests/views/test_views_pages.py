"""The view of pages against the engine's own tables, and its sums by hand."""

from __future__ import annotations

import engines
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.trace.records import AnswerRecord
from cutaway.views import view_of
from cutaway.views.pages import AnswerPages
from cutaway.views.parts.query import Query
from subjects import answered


def pages(engine: Engine, answer: AnswerRecord) -> AnswerPages:
    payload = view_of("pages").show(Look(engine, answer).subject, Query()).payload
    assert isinstance(payload, AnswerPages)
    return payload


def test_found_and_written_pages_and_their_bytes() -> None:
    engine = engines.engine(engines.loaded(), prefill_chunk=16)
    first = answered(engine, range(40), max_tokens=4)
    second = answered(engine, [*range(20), *range(100, 130)], max_tokens=12)
    seen = pages(engine, second)
    (group,) = seen.groups
    # 50 tokens of prompt and 11 of the answer are stored: 7 full pages of 8 and one of 5 tokens.
    assert (seen.num_tokens, group.num_pages, group.layers) == (61, 8, (0, 1))
    spans = [(run.first, run.count, run.origin, run.writer, run.is_full) for run in group.runs]
    assert spans == [
        (0, 2, "found", first.number, True),
        (2, 4, "prompt", second.number, True),
        (6, 1, "answer", second.number, True),
        (7, 1, "answer", second.number, False),
    ]
    assert [run.is_kept for run in group.runs] == [True, True, True, False]
    steps = second.steps
    assert [run.step for run in group.runs] == [None, steps[1], steps[2 + 6], steps[-1]]
    assert group.token_bytes == 2 * 2 * 2 * 12 * 8 and group.page_bytes == 8 * group.token_bytes
    assert seen.kept_bytes == 61 * seen.token_bytes == 61 * group.token_bytes
    assert seen.miss.kind == "differs" and seen.miss.agrees == 20
    assert seen.miss.nearest == first.number


def test_operations_with_and_without_a_cache() -> None:
    engine = engines.engine(engines.loaded())
    seen = pages(engine, answered(engine, range(10), max_tokens=3))
    facts = engine.model.facts
    heads, groups = facts.num_heads * facts.head_size, facts.num_groups * facts.head_size
    token = 2 * facts.num_layers * facts.width * (2 * heads + 2 * groups + 3 * facts.inner)
    pair, row = 2 * 2 * heads * facts.num_layers, 2 * facts.width * facts.vocab_size

    def whole(length: int) -> int:
        return length * token + pair * length * (length + 1) // 2 + row

    assert seen.without_flops == whole(10) + whole(11) + whole(12)
    assert seen.flops == whole(12) + 2 * row


def test_what_was_evicted_is_not_kept() -> None:
    engine = engines.engine(engines.loaded(), num_pages=9)
    answer = answered(engine, range(40), max_tokens=4)
    answered(engine, range(100, 150), max_tokens=4)
    seen = pages(engine, answer)
    # Of 8 pages the other answer needs 7; the end of a prefix goes before its start.
    assert [(run.first, run.count) for run in seen.groups[0].runs if run.is_kept] == [(0, 1)]
    text = seen.draw().text()
    assert "Ppppp" in text and "0 of 40 prompt tokens were found" in text
    again = pages(engine, answered(engine, range(40), max_tokens=4))
    assert again.miss.kind == "evicted" and again.miss.nearest == answer.number


def test_groups_of_layers_keep_what_they_see() -> None:
    """Windows slide, and the picture is in 100 columns however long the answer."""
    model = engines.loaded(max_position_embeddings=4096)
    engine = engines.engine(model, num_pages=500)
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    ids = tuple(number % 250 for number in range(3000))
    engines.run(engine, [Request(request_id="long", prompt_token_ids=ids, params=params)])
    assert engine.ledger is not None
    answer = engine.ledger.find("long")
    assert answer is not None
    seen = pages(engine, answer)
    assert seen.groups[0].num_pages == 376
    lines = seen.draw().text().splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) < 20
    assert any("2 pages a letter" in line for line in lines)
