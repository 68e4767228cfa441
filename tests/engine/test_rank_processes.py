"""One model over several processes that meet by gloo: same bits, and no rank outlives another."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import services
from cutaway.core.errors import ConfigError, EngineClosedError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine import memory
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.build import build_engine, num_pages
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.ranks import start_ranks as starting
from cutaway.kernels import capture
from cutaway.replay.recorded_answers import verify_answer
from cutaway.service.bounds import ProcessConfig
from cutaway.service.process import ProcessService
from engines import loaded, run

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


@pytest.mark.parametrize("dtype", [NATIVE])
def test_two_stages_of_two_processes_each_give_the_rows_of_one(folder: Path, dtype: str) -> None:
    target = opened(folder, 2, dtype, pipeline=2)
    expected = told(opened(folder, 1, dtype))
    assert told(target) == expected
    assert target.ledger is not None
    assert all(verify_answer(target, answer).is_exact for answer in target.ledger.answers)
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
    assert not made[0].folder.exists(), "a group that is killed leaves no file"
    first, second = (process.pid for process in made[0].processes)
    os.kill(first, signal_number)
    if signal_number == signal.SIGSTOP:  # a stopped rank is noticed by who watches the engine
        assert target.model.ranks is not None
        target.model.ranks.close()
    assert is_gone(first) and is_gone(second), "all of them end"
    target.add(requests()[0])
    with pytest.raises(EngineLostError):
        target.step()


@pytest.mark.parametrize("dtype", [NATIVE])
def test_scale_s03_a_rank_with_experts_that_is_killed_blocks_nobody(
    tmp_path: Path, dtype: str
) -> None:
    """In the midst of an answer: rank 0 hears of it, and the third rank ends too."""
    experts = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    model = services.make_model(tmp_path, **SHAPE, **experts, **sizes)
    config = EngineConfig(device="cpu", dtype=dtype, tensor=3, cache_tokens=1024, page_size=8)
    before = followers(os.getpid())
    target = build_engine(model, config)
    ranks = [pid for pid in followers(os.getpid()) if pid not in before]
    target.add(requests()[0])
    target.step()
    os.kill(ranks[0], signal.SIGKILL)
    with pytest.raises(EngineLostError):
        while target.has_work:
            target.step()
    assert all(is_gone(pid) for pid in ranks)


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


# In the way of followers: their memory ends where one thing is made.
WITHOUT_MEMORY = """
import sys

if "cutaway.engine.ranks.follower" in sys.orig_argv:
    from cutaway.cache.pool import Pool
    from cutaway.engine.runner import Runner

    def fail(*_, **__):
        raise MemoryError

    {what} = fail
"""


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("Pool.__init__", r"\d+ pages of 8 tokens.*cache_tokens"),
        ("Runner.forward", r"a step of \d+ tokens.*prefill_chunk"),
    ],
)
def test_scale_s10_s11_a_rank_without_room_is_named_at_the_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    """For its pages, and for the largest step, which every rank tries before any request."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_MEMORY.format(what=what), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ConfigError, match="rank 1 of 2: it has no memory for " + words):
        opened(folder, 2, "float64")


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
        ({"pipeline": 65}, "pipeline is 65; it must be from 1 to 64"),
        ({"tensor": 9, "pipeline": 8}, "tensor is 9 and pipeline 8, which are 72 ranks"),
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


def test_scale_s16_a_model_that_all_ranks_have_no_memory_for_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(3 * 2**30)  # a hole: no disk is written
    starting.check_memory(tmp_path, 2, free=3 * 2**30)
    starting.check_memory(tmp_path, 2, free=None)
    words = r"take 3\.0 GiB as they are stored, and 2\.0 GiB are free .* all 2 ranks share"
    with pytest.raises(ConfigError, match=words):
        starting.check_memory(tmp_path, 2, free=2**31)


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:1"])
def test_a_cache_that_all_ranks_have_no_memory_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, listen: str | None
) -> None:
    """Ranks of one host share its memory; those of other hosts have their own."""
    alone = loaded()
    of_two: Any = SimpleNamespace(grid=SimpleNamespace(rows=SimpleNamespace(size=2)))
    config = EngineConfig(
        device="cpu", cache_tokens=1000, page_size=8, rank_listen=listen, tensor=2
    )
    bytes_per_token = sum(spec.bytes_per_token("float64") for spec in alone.facts.cache_specs)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1999 * bytes_per_token)
    assert num_pages(alone, config) == 1 + 125
    if listen is None:
        with pytest.raises(ConfigError, match=r"are free\. Ask for at most 999,"):
            num_pages(replace(alone, ranks=of_two), config)
    else:
        assert num_pages(replace(alone, ranks=of_two), config) == 1 + 125


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

    services.run_apart(body())


# In the way of every rank: a signal that cuts whatever it is joined by.
CUT = """
import os
import signal
import socket
import stat

def cut(*_):
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                socket.socket(fileno=os.dup(int(name))).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

signal.signal(signal.SIGUSR2, cut)
"""
ROUNDS = int(os.environ.get("CUTAWAY_RANK_ROUNDS", "4"))
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "cut": signal.SIGUSR2}


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_scale_t3_ranks_are_killed_stopped_cut_and_delayed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any rank, at any moment of an answer: all of them end, and those that come back are right."""
    (tmp_path / "sitecustomize.py").write_text(CUT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    chance = random.Random(5)
    seconds: dict[str, list[float]] = {"noticed": [], "ended": [], "back": []}
    done: Counter[str] = Counter()

    async def break_one(service: ProcessService, what: str, expected: list[int]) -> None:
        ranks = [service.pid or 0, *followers(service.pid or 0)]
        victim, begun = chance.choice(ranks), time.monotonic()
        os.kill(victim, SIGNALS[what])
        await services.until(lambda: service.state != "ready")
        seconds["noticed"].append(time.monotonic() - begun)
        assert all(await asyncio.gather(*(asyncio.to_thread(is_gone, pid) for pid in ranks)))
        seconds["ended"].append(time.monotonic() - begun - seconds["noticed"][-1])
        await services.until(lambda: service.state == "ready")
        seconds["back"].append(time.monotonic() - begun)
        assert await services.token_ids(service, long_request("again")) == expected

    async def delay_one(service: ProcessService) -> None:
        victim = chance.choice([service.pid or 0, *followers(service.pid or 0)])
        os.kill(victim, signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(0.02, 0.5))
        os.kill(victim, signal.SIGCONT)

    def note(what: str) -> None:
        """Tell how many went right so far: whoever ends a long run early knows how far it came."""
        done[what] += 1
        if done.total() % 10 == 0 or done.total() == ROUNDS:
            times = ", ".join(
                f"{word} {sorted(each)[len(each) // 2]:.2f} s (most {max(each):.2f})"
                for word, each in seconds.items()
                if each
            )
            print(f"{done.total()} of {ROUNDS} breaks right: {dict(done)}; {times}", flush=True)

    async def body() -> None:
        model = services.make_model(folder, **SHAPE)
        process = ProcessConfig(hang_seconds=3, stall_seconds=4)
        async with services.running(model, process=process, tensor=2) as service:
            expected = await services.token_ids(service, long_request("first"))
            held = services.held()
            for number in range(ROUNDS):
                what = chance.choice([*SIGNALS, "delay"]) if ROUNDS > 4 else EACH[number]
                answer = asyncio.create_task(
                    services.token_ids(service, long_request(f"loud{number}"))
                )
                await asyncio.sleep(chance.uniform(0.0, 0.4))
                if what == "delay":
                    await delay_one(service)
                    assert await answer == expected
                    note(what)
                    continue
                await break_one(service, what, expected)
                with suppress(EngineClosedError):  # or it was done before
                    assert await answer == expected
                # Threads of the loop's own pool are made as they are needed.
                now = {**services.held(), "threads": 0}
                more = {kind: n for kind, n in now.items() if n > held[kind]}
                assert not more, f"{more} after {what}, and {held} before"
                note(what)
        assert not list(tmp_path.glob("cutaway-*")), "no file is left"

    services.run_apart(body())


EACH = [*SIGNALS, "delay"]


def long_request(name: str) -> Request:
    """Enough tokens that something can happen before it is done."""
    return services.request(name, max_tokens=200)
