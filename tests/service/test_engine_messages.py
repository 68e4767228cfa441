"""What two processes say to each other arrives as it was said, however it was cut on the way."""

from __future__ import annotations

import random

import pytest

import engines
from cutaway.core import errors
from cutaway.core.errors import CutawayError
from cutaway.core.grammar import Grammar
from cutaway.core.output import Delta, Timings, TokenLogprob, Usage
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.service import engine_messages
from cutaway.service.engine_messages import (
    Add,
    EngineCounts,
    Failed,
    Frames,
    News,
    Progress,
    encode_frame,
)
from cutaway.service.service import EngineStats

MADE = {
    errors.TraceFileError: errors.TraceFileError("is cut.", file="a.cutaway"),
    errors.ModelFormatError: errors.ModelFormatError("is cut.", file="m.gguf", field="header"),
    errors.OverloadedError: errors.OverloadedError("too much.", retry_after=7),
    errors.RequestError: errors.RequestError("is wrong.", param="top_p"),
    errors.ContextLengthError: errors.ContextLengthError("is long.", param="prompt"),
}
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CutawayError)
]


def body(message: engine_messages.Command | engine_messages.Report) -> bytes:
    (only,) = Frames().feed(encode_frame(message))
    return only


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_arrives_with_its_class_words_and_attributes(kind: type[CutawayError]) -> None:
    sent = MADE.get(kind) or kind("went wrong.")
    got = engine_messages.decode_report(body(Failed("r", sent)))
    assert isinstance(got, Failed)
    assert type(got.error) is kind
    assert str(got.error) == str(sent)
    assert vars(got.error) == vars(sent)


def test_a_class_from_elsewhere_arrives_as_its_nearest_public_one() -> None:
    class OwnError(errors.RequestError):
        pass

    got = engine_messages.decode_report(body(Failed("r", OwnError("no.", param="n"))))
    assert isinstance(got, Failed)
    assert type(got.error) is errors.RequestError and got.error.param == "n"


def test_settings_arrive_as_they_are() -> None:
    config = EngineConfig.of({"override": ("rope_theta=1", "window=2"), "page_size": 8})
    got = engine_messages.decode_command(body(engine_messages.Load("tiny", config.as_settings())))
    assert isinstance(got, engine_messages.Load)
    assert EngineConfig.of(got.settings) == config
    assert "max_sequences" not in got.settings, "whoever has the device knows what is right there"
    whole = config.on("cpu")
    assert EngineConfig.of(whole.as_settings()) == whole


def test_requests_of_every_kind_arrive_equal() -> None:
    own = Request(
        request_id="r",
        prompt_token_ids=(0, 2**31),
        params=SamplingParams(
            seed=-(2**63),
            logit_bias={3: -1.5},
            stop=("\U0001f642",),
            stop_token_ids=(7,),
            grammar=Grammar.choice(["a", "b"]),
        ),
        cache_salt=b"\x00\xff",
        owner="alice",
        deadline=1.5,
    )
    for request in [own, *engines.workload(1, count=20)]:
        got = engine_messages.decode_command(body(Add(request)))
        assert isinstance(got, Add) and got.request == request


def test_news_arrives_equal() -> None:
    score = TokenLogprob(5, -0.25, 1, ((5, -0.25), (6, -2.0)))
    deltas = [
        Delta("a", 0, (5,), "x", (score,), (None, score)),
        Delta("b", 2, stopped_by="end", finish_reason="stop", usage=Usage(1, 2, 3)),
        Delta("b", 1, stopped_by=7, finish_reason="stop", timings=Timings(1, 2, 3, 4, 5)),
        Delta("c", 0, finish_reason="error", error=errors.NumericsError("NaN.")),
    ]
    got = engine_messages.decode_report(body(News(deltas)))
    assert isinstance(got, News) and got.deltas == deltas
    assert got.deltas[2].timings == Timings(1, 2, 3, 4, 5)
    assert isinstance(got.deltas[3].error, errors.NumericsError)


def test_a_stream_may_be_cut_anywhere() -> None:
    counted, news = EngineCounts(3, EngineStats(running=2)), News([Delta("r", 0, text="é" * 300)])
    said = [Progress(7), counted, news] * 5
    stream = b"".join(encode_frame(each) for each in said)
    chance = random.Random(3)
    for size in (1, 2, 3, 7, 64, len(stream)):
        frames, got = Frames(), []
        position = 0
        while position < len(stream):
            part = chance.randint(1, size)
            got += [
                engine_messages.decode_report(each)
                for each in frames.feed(stream[position:][:part])
            ]
            position += part
        assert got == said
