"""What a late reader gets: several steps' news of one choice as one piece, and nothing lost."""

from __future__ import annotations

import asyncio
from typing import Any

from cutaway.core.errors import DeadlineError
from cutaway.core.output import Delta, DrawProof, TokenLogprob, Usage
from cutaway.core.request import Request, SamplingParams
from cutaway.fleet.resume import Stream
from cutaway.service.inbox import MANY, Inbox


def news(choice: int, token_id: int, **others: Any) -> Delta:
    return Delta(
        "r",
        choice,
        (token_id,),
        chr(token_id),
        (TokenLogprob(token_id, -0.5, 1),),
        draws=(DrawProof(token_id, 0.0, 0.0, 7),),
        **others,
    )


def taken(
    said: list[Delta | BaseException], *, num_readers: int = MANY
) -> list[Delta | BaseException]:
    async def read() -> list[Delta | BaseException]:
        inbox = Inbox()
        for each in said:
            inbox.put_nowait(each)
        found: list[Delta | BaseException] = []
        while inbox.qsize():
            found.append(await inbox.get(num_readers))
        return found

    return asyncio.run(read())


def test_news_that_waits_is_told_together_choice_by_choice() -> None:
    usage = Usage(1, 3, 0)
    first = news(0, 97, prompt_logprobs=(None,))
    ends = news(0, 99, finish_reason="stop", usage=usage, stopped_by=99)
    found = taken([first, news(0, 98), news(1, 120), ends, news(1, 121)])
    assert [(each.choice, each.token_ids, each.text) for each in found] == [
        (0, (97, 98), "ab"),
        (1, (120,), "x"),
        (0, (99,), "c"),
        (1, (121,), "y"),
    ]
    joined = found[0]
    assert [each.token_id for each in joined.logprobs] == [97, 98]
    assert [each.u for each in joined.draws] == [97, 98]
    assert joined.prompt_logprobs == (None,)
    assert joined.finish_reason is None

    (whole,) = taken([first, news(0, 98), ends])
    assert (whole.text, whole.finish_reason, whole.usage) == ("abc", "stop", usage)
    assert whole.stopped_by == 99
    assert len(taken([first, news(0, 98), ends], num_readers=MANY - 1)) == 3


def test_faults_are_told_alone_behind_what_was_said() -> None:
    broken = Delta("r", 0, finish_reason="error", error=DeadlineError("late"))
    moved = RuntimeError("elsewhere")
    assert taken([news(0, 97), news(0, 98), broken]) == [*taken([news(0, 97), news(0, 98)]), broken]
    found = taken([news(0, 97), moved, news(0, 98)])
    assert [getattr(each, "text", each) for each in found] == ["a", moved, "b"]


def test_a_seam_is_told_alone_so_that_no_token_is_taken_for_a_part_of_it() -> None:
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(seed=1))
    stream = Stream(request, "class", lambda: 0.0)
    stream.bind("class")
    stream.take(news(0, 97))
    stream.unbind(has_ended=True)
    stream.bind("class")
    found = taken([Delta("r", 0, seam=True), news(0, 98), news(0, 99)])
    told = [delta for each in found if isinstance(each, Delta) and (delta := stream.take(each)[0])]
    assert [each.text for each in told] == ["bc"]
    (choice,) = stream.list_begun()
    assert choice.token_ids == (97, 98, 99) and stream.is_exact


def test_a_reader_in_time_gets_each_token_when_it_comes() -> None:
    async def read() -> list[str]:
        inbox, found = Inbox(), []
        for token_id in (97, 98, 99):
            reader = asyncio.create_task(inbox.get(MANY))
            await asyncio.sleep(0)
            inbox.put_nowait(news(0, token_id))
            found.append((await reader).text)
        return found

    assert asyncio.run(read()) == ["a", "b", "c"]
