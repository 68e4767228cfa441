"""One model over several processes that meet by gloo: same bits, and no rank outlives another."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import services
from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.ranks import start_ranks as starting
from cutaway.kernels import capture
from cutaway.replay.recorded_answers import verify_answer
from engines import run

NATIVE = pytest.param(
    "auto",
    marks=pytest.mark.skipif(
        not capture.is_available(), reason="the native kernels are not built: run `make native`"
    ),
)
# Two heads of 16 and one rank more than key-value heads; widths that native groups of 32 divide.
SHAPE = {
    **{"hidden_size": 64, "head_dim": 16, "intermediate_size": 160, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}


def opened(folder: Path, size: int, dtype: str, **settings: Any) -> Engine:
    config = EngineConfig(
        device="cpu", dtype=dtype, tensor=size, cache_tokens=1024, page_size=8, **settings
    )
    return build_engine(services.make_model(folder, **SHAPE), config)


def requests() -> list[Request]:
    params = SamplingParams(max_tokens=12, ignore_eos=True, seed=3, temperature=0.8)
    prompts = [[(5 * i + n) % 250 for i in range(n)] for n in (3, 30)]
    return [
        Request(request_id=f"r{n}", prompt_token_ids=tuple(p), params=params)
        for n, p in enumerate(prompts)
    ]


def told(target: Engine) -> dict[str, list[tuple[int, int]]]:
    """Of each answer its tokens, and the checksums of the rows that they were drawn from."""
    run(target, requests())
    assert target.ledger is not None
    return {
        answer.request.request_id: [(token.token_id, token.checksum) for token in answer.tokens]
        for answer in target.ledger.answers
    }


def is_gone(pid: int, *, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), NATIVE])
def test_scale_t2_s06_two_processes_give_the_rows_of_one(folder: Path, dtype: str) -> None:
    """Every row to the bit with native kernels, and tokens in any case; a replay finds the same."""
    target = opened(folder, 2, dtype)
    found, expected = told(target), told(opened(folder, 1, dtype))
    assert {key: [i for i, _ in rows] for key, rows in found.items()} == {
        key: [i for i, _ in rows] for key, rows in expected.items()
    }
    if dtype == "auto":
        assert found == expected
    assert target.ledger is not None
    for answer in target.ledger.answers:
        assert verify_answer(target, answer).is_exact
    assert target.model.ranks is not None
    target.model.ranks.close()


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_scale_t3_s02_s15_no_rank_outlives_another(
    folder: Path, signal_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[starting.Followers] = []
    init = starting.Followers.__init__
    monkeypatch.setattr(
        starting.Followers, "__init__", lambda self: (init(self), made.append(self))[0]
    )
    target = opened(folder, 3, "float64")
    first, second = (process.pid for process in made[0].processes)
    os.kill(first, signal_number)
    if signal_number == signal.SIGSTOP:  # a stopped rank is noticed by who watches the engine
        assert target.model.ranks is not None
        target.model.ranks.close()
    assert is_gone(first) and is_gone(second), "all of them end"
    end = time.monotonic() + 60
    while made[0].folder.exists():
        assert time.monotonic() < end, "what they met in goes too"
        time.sleep(0.01)
    target.add(requests()[0])
    with pytest.raises(EngineLostError):
        target.step()


def test_an_engine_that_nobody_has_takes_its_ranks_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[starting.Followers] = []
    init = starting.Followers.__init__
    monkeypatch.setattr(
        starting.Followers, "__init__", lambda self: (init(self), made.append(self))[0]
    )
    target = opened(folder, 2, "float64")
    del target
    gc.collect()
    assert is_gone(made[0].processes[0].pid)


def test_scale_s01_a_rank_that_does_not_come_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_spawn", lambda *_: _Absent())
    model = services.make_model(folder, **SHAPE)
    config = EngineConfig(device="cpu", tensor=3)
    with pytest.raises(ConfigError, match=r"rank 1 of 3 ended before it had started"):
        build_engine(model, config)


class _Absent:
    """A process that ended before it said anything."""

    pid = 0

    def wait(self, timeout: float) -> int:
        return 0

    def poll(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor": 0}, "tensor is 0; it must be from 1 to 64"),
        ({"tensor": 2, "lora": ("a=b",)}, "tensor is 2 and lora is"),
        ({"tensor": 2, "draft_layers": 1}, 'tensor is 2 and draft is "early"'),
    ],
)
def test_what_ranks_do_not_do_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(**settings)


def followers(leader: int) -> list[int]:
    """The processes that an engine's process started."""
    found: list[int] = []
    for thread in Path(f"/proc/{leader}/task").iterdir():
        found += [int(pid) for pid in (thread / "children").read_text().split()]
    return found


def test_more_ranks_than_cores_can_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"tensor is 5, and this machine has 1 cores; .* most 4 "):
        starting.start("random:none", EngineConfig(tensor=5))


@pytest.mark.slow
def test_scale_t3_a_service_whose_rank_is_killed_comes_back_and_is_right(folder: Path) -> None:
    async def body() -> None:
        model = services.make_model(folder, **SHAPE)
        asked = services.request("golden")
        async with services.running(model, tensor=2) as service:
            before = await services.token_ids(service, asked)
            leader = service.pid
            assert leader is not None
            (follower,) = followers(leader)
            os.kill(follower, signal.SIGKILL)
            await services.until(lambda: service.state != "ready")
            await services.until(lambda: service.state == "ready")
            assert service.pid != leader and is_gone(leader)
            assert await services.token_ids(service, asked) == before
            (again,) = followers(service.pid or 0)
        assert is_gone(again), "a service that is closed leaves no rank"

    asyncio.run(body())
