"""A vocabulary learned by HTTP: the learner's own merges, and bounds on what is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server_app import client, serving

from cutaway.core.limits import MAX_LEARN_BYTES
from cutaway.tokens.learn_vocabulary import BPELearner

PATH = "/cutaway/v1/learn"
TEXT = "To be, or not to be, that is the question: na\u00efve \U0001f642\r\n" * 20


def test_merges_are_the_learners_and_shorten_the_text(folder: Path) -> None:

    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            told = (await http.post(PATH, json={"text": TEXT, "merges": 40})).json()
            learner = BPELearner([TEXT])
            learned = learner.run(40)
            assert [step["pair"] for step in told["steps"]] == [[*each.pair] for each in learned]
            assert [step["count"] for step in told["steps"]] == [each.count for each in learned]
            for step in told["steps"]:
                assert step["pairs"][0] == [*step["pair"], step["count"]], "the first of them wins"
            vocabulary = [bytes.fromhex(each) for each in told["vocabulary"]]
            assert vocabulary == learner.tokens
            assert told["num_tokens"] == told["num_bytes"] == len(TEXT.encode())
            assert told["steps"][-1]["num_tokens"] == learner.num_tokens
            assert bytes.fromhex("".join(told["words"])).decode() == TEXT[:600]

    asyncio.run(body())


@pytest.mark.parametrize("size", [0, MAX_LEARN_BYTES + 1])
def test_a_text_out_of_bounds_is_refused(folder: Path, size: int) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            refused = await http.post(PATH, json={"text": "x" * size})
            assert refused.status_code == 400
            words = refused.json()["error"]["message"]
            assert words == f"text has {size} bytes; it must have from 1 to {MAX_LEARN_BYTES}."

    asyncio.run(body())


def test_a_short_text_ends_where_no_pair_is_left(folder: Path) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            told = (await http.post(PATH, json={"text": "abab", "merges": 300})).json()
            assert [step["num_tokens"] for step in told["steps"]] == [2, 1]

    asyncio.run(body())
