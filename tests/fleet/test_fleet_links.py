"""Engines on other hosts as members of a fleet: links that end, come back, or are refused."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from fleet_fakes import FakeEngine, asked, heard, token_of, whole
from fleet_fakes import in_loop as in_open_loop

import services
from cutaway.core.errors import ConfigError, EngineClosedError
from cutaway.core.request import Request
from cutaway.fleet.fleet import Fleet
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.host.link_key import LinkAddress, LinkKey
from cutaway.host.sealed_link import ask_for_link, listen_for_links
from cutaway.service.bounds import ProcessConfig
from cutaway.service.links import link_messages, link_server, link_service
from cutaway.service.links.link_messages import Introduce, decode_answered, encode
from cutaway.service.links.link_server import LinkServer
from cutaway.service.links.link_service import LinkService

KEY = LinkKey("k" * 32)


def in_loop(test: Callable[..., Any], seconds: float = 120) -> Callable[..., None]:
    """As in_open_loop, and connections are closed before the loop is."""

    @wraps(test)
    async def closed(*arguments: Any, **named: Any) -> None:
        await test(*arguments, **named)
        for _ in range(5):
            await asyncio.sleep(0.005)

    return in_open_loop(closed, seconds)


class Host:
    """A member with a scripted engine, which can be cut off."""

    def __init__(self, name: str, *, key: LinkKey = KEY, secret: bytes | None = None) -> None:
        self.told: list[str] = []
        self.engine = FakeEngine(name, self._change, secret or KEY.page_secret)
        self.server = LinkServer(self.engine, key, tell=self.told.append)
        self.address = LinkAddress("127.0.0.1", 0)

    def _change(self) -> None:
        self.server.change()

    async def start(self, *, is_loaded: bool = True) -> None:
        plain = listen_for_links(self.address)
        self.address = LinkAddress("127.0.0.1", plain.getsockname()[1])
        await self.server.start(plain)
        if is_loaded:
            await self.engine.start()

    async def cut(self) -> None:
        """As when the network is gone: nobody is told, and nobody listens."""
        await self.server.close()
        await until(lambda: not self.engine.running)

    async def restart(self) -> None:
        self.server = LinkServer(self.engine, KEY, tell=self.told.append)
        await self.server.start(listen_for_links(self.address))


@asynccontextmanager
async def hosts(count: int) -> AsyncGenerator[list[Host]]:
    made = [Host(str(number)) for number in range(count)]
    for host in made:
        await host.start()
    try:
        yield made
    finally:
        for host in made:
            await host.server.close()
        await asyncio.sleep(0.01)  # connections are closed


@asynccontextmanager
async def fleet_over(*made: Host, ready: int | None = None, **settings: Any) -> AsyncGenerator[Any]:
    told: list[str] = []

    def make(name: str, changed: Callable[[], None], secret: bytes, _: int) -> LinkService:
        return LinkService(
            LinkAddress.parse(name),
            KEY,
            config=ProcessConfig(restart_seconds=0.05),
            tell=told.append,
            changed=changed,
        )

    config = FleetConfig(replicas=0, members=tuple(str(host.address) for host in made), **settings)
    fleet = Fleet(make, config, tell=told.append, secret=KEY.page_secret, drain_seconds=0.5)
    try:
        await fleet.start()
        await until(lambda: fleet.num_ready == (len(made) if ready is None else ready))
        yield fleet, told
    finally:
        await fleet.close()
        await asyncio.sleep(0.01)  # connections are closed


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.002)


async def answers(fleet: Fleet, requests: list[Request]) -> None:
    """Have all answered, and find each as nobody disturbed it."""
    told = await asyncio.gather(*(heard(fleet, each) for each in requests))
    for request, choices in zip(requests, told, strict=True):
        assert {choice: ids for choice, (ids, _, _) in choices.items()} == whole(request)


@in_loop
async def test_members_elsewhere_answer_as_engines_here() -> None:
    async with hosts(2) as made, fleet_over(*made) as (fleet, _):
        await answers(fleet, [asked(f"r{i}", n=1 + i % 3) for i in range(24)])
        assert all(host.engine.asked for host in made), "both had some"
        stats = await fleet.stats()
        assert stats.steps == 6 and stats.fleet is not None
        assert [each.name for each in stats.fleet.replicas] == [str(h.address) for h in made]
        assert not any(host.engine.running for host in made)


@in_loop
async def test_scale_s32_a_lost_link_loses_no_answer_and_is_made_again() -> None:
    async with hosts(2) as made, fleet_over(*made) as (fleet, told):
        for host in made:
            host.engine.pace = 0.02
        requests = [asked(f"r{i}", max_tokens=40) for i in range(12)]
        going = asyncio.create_task(answers(fleet, requests))
        await until(lambda: all(len(host.engine.running) > 2 for host in made))
        await asyncio.sleep(0.1)  # each has said something
        await made[0].cut()
        await until(lambda: fleet.num_ready == 1)
        await going
        assert (await fleet.stats()).fleet.resumed["true"] > 2  # type: ignore[union-attr]
        await made[0].restart()
        await until(lambda: fleet.num_ready == 2)
        await answers(fleet, [asked(f"again{i}") for i in range(8)])
        assert sum("is lost" in each for each in told) == 1, "said once"


@in_loop
async def test_an_engine_that_dies_elsewhere_is_resumed_and_joins_again() -> None:
    async with hosts(2) as made, fleet_over(*made) as (fleet, _):
        for host in made:
            host.engine.pace = 0.01
        going = asyncio.create_task(
            answers(fleet, [asked(f"r{i}", max_tokens=40) for i in range(9)])
        )
        await until(lambda: all(host.engine.running for host in made))
        made[1].engine.kill()
        await going
        await until(lambda: fleet.num_ready == 2)
        assert made[1].server.num_fronts == 1, "the link stays"


@in_loop
async def test_what_a_front_asked_ends_with_it() -> None:
    async with hosts(1) as (host,):
        host.engine.pace = 0.01
        async with fleet_over(host) as (fleet, _):
            going = asyncio.create_task(heard(fleet, asked("r", max_tokens=4000)))
            await until(lambda: host.engine.running)
            going.cancel()
            await until(lambda: not host.engine.running)  # a reader who leaves
            going = asyncio.create_task(heard(fleet, asked("s", max_tokens=4000)))
            await until(lambda: host.engine.running)
        going.cancel()
        await until(lambda: not host.engine.running and not host.server.num_fronts)


@in_loop
async def test_two_fronts_ask_one_engine_each_for_itself() -> None:
    async with hosts(1) as (host,), fleet_over(host) as (one, _), fleet_over(host) as (two, _):
        host.engine.pace = 0.002
        await asyncio.gather(
            answers(one, [asked(f"a{i}") for i in range(4)]),
            answers(two, [asked(f"b{i}") for i in range(4)]),
        )
        assert host.server.num_fronts == 2


@in_loop
async def test_a_slow_reader_holds_its_own_answer_alone() -> None:
    async with hosts(1) as (host,):
        service = LinkService(host.address, KEY, tell=lambda text: None)
        await service.start()
        slow = service.follow(asked("slow", max_tokens=2000))
        await anext(slow)
        await asyncio.sleep(0.3)
        inbox = service._calls.open["slow"]
        held = inbox.qsize()
        assert inbox.is_held
        await asyncio.sleep(0.2)
        assert inbox.qsize() <= held + 64, "no more is made than what was on its way"
        assert len([d async for d in service.follow(asked("quick"))]) == 12
        assert [d.token_ids[0] async for d in slow] == [
            token_of(asked("slow", max_tokens=2000), 0, place) for place in range(1, 2000)
        ]
        await service.close()


@in_loop
async def test_scale_s36_another_version_is_refused_and_both_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosts(1) as (host,):
        link = await ask_for_link(host.address, KEY)
        link.send(encode(Introduce(version="9.9.9")))
        assert isinstance(decode_answered(await link.receive()), Introduce)
        await until(lambda: any("runs Cutaway 9.9.9, and this one is 0." in t for t in host.told))
        assert not host.server.num_fronts
        link.cut()
        said = Introduce(version="8.8.8", role="member")
        monkeypatch.setattr(link_server, "Introduce", lambda role: said)
        service = LinkService(host.address, KEY, tell=lambda text: None)
        with pytest.raises(ConfigError, match=r"runs Cutaway 8\.8\.8, and this one is 0\."):
            await service.start()
        await service.close()


@in_loop
async def test_two_fronts_or_two_members_do_not_link() -> None:
    with pytest.raises(ConfigError, match="is a front; it must be a member"):
        link_messages.check_introduced(Introduce(), role="member", where="tcp://a:1")


@in_loop
async def test_scale_s25_members_of_other_keys_models_and_weights_are_refused() -> None:
    good = Host("good")
    await good.start()
    for change, why in (
        ({"page_keys": b"other"}, "its keys of pages are of another secret"),
        ({"weights": "w", "form": ""}, "its weights are not those of replica"),
    ):
        other = Host("other")
        other.engine.terms = replace(other.engine.terms, **change)
        async with fleet_over(good, ready=1) as (fleet, told):
            await other.start()
            fleet.link(str(other.address))
            await until(lambda: any("is refused" in text for text in told))
            (refused,) = (text for text in told if "is refused" in text)
            assert refused.startswith(f"replica {other.address} is refused: {why}")
            assert fleet.num_ready == 1
        await other.server.close()
    service = LinkService(good.address, KEY, vocabulary="ours", tell=lambda text: None)
    with pytest.raises(ConfigError, match="serves fake, whose vocabulary is not that of the model"):
        await service.start()
    await service.close()
    await good.server.close()


@in_loop
async def test_another_key_ends_the_start_where_no_other_member_is() -> None:
    host = Host("0", key=LinkKey("z" * 32))
    await host.start()
    with pytest.raises(ConfigError, match="has another key of links"):
        async with fleet_over(host):
            pass
    await host.server.close()


@in_loop
async def test_who_is_not_there_is_said_once_and_waited_for() -> None:
    host, told = Host("0"), list[str]()
    plain = listen_for_links(host.address)
    host.address = LinkAddress("127.0.0.1", plain.getsockname()[1])
    plain.close()
    service = LinkService(
        host.address, KEY, config=ProcessConfig(restart_seconds=0.3), tell=told.append
    )
    starting = asyncio.create_task(service.start())
    await until(lambda: told)
    await asyncio.sleep(0.8)
    assert told == [
        f"{host.address} cannot be reached: Connection refused. It is tried again until it is "
        "there."
    ]
    await host.start(is_loaded=False)
    await until(lambda: host.server.num_fronts)
    assert not starting.done() and service.state == "starting"
    await host.engine.start()
    await starting
    assert service.state == "ready" and service.num_starts == 1
    await service.close()
    await host.server.close()


@in_loop
async def test_a_silent_member_counts_as_hung_and_its_link_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_server, "BEAT_SECONDS", 1000)
    monkeypatch.setattr(link_service, "LOOK_SECONDS", 0.05)
    async with hosts(1) as (host,):
        told: list[str] = []
        config = ProcessConfig(hang_seconds=0.1, stall_seconds=0.3, restart_seconds=0.01)
        service = LinkService(host.address, KEY, config=config, tell=told.append)
        await service.start()
        host.engine.pace = 1000
        following = service.follow(asked("r"))
        with pytest.raises(EngineClosedError, match="lost while this answer ran"):
            await anext(following)
        assert any("nothing was heard of" in text for text in told)
        await service.close()


@in_loop
async def test_what_strangers_hold_open_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosts(1) as (host,):
        opened = [
            await asyncio.open_connection(host.address.host, host.address.port)
            for _ in range(link_server.MOST_STRANGERS + 5)
        ]
        cut = 0
        for reader, _ in opened[-5:]:
            try:
                cut += await reader.read(1) == b""
            except ConnectionError:
                cut += 1
        assert cut == 5, "those beyond the bound are cut as they come"
        for _, writer in opened:
            writer.close()
        await until(lambda: not host.server._num_strangers)
        service = LinkService(host.address, KEY, tell=lambda text: None)
        await service.start()
        await service.close()


async def start_member(
    model: str, folder: Path, *flags: str
) -> tuple[asyncio.subprocess.Process, str]:
    """A member's process of its own, and where it listens."""
    made = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cutaway", "member", model, "--listen", "tcp://127.0.0.1:0"),
        *("--link-key-file", str(folder / "key"), "--end-with-stdin", "--device", "cpu"),
        *("--cache-tokens", "8192", "--page-size", "8", *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert made.stdout is not None
    return made, (await made.stdout.readline()).decode().strip()


@partial(in_loop, seconds=200)
async def test_scale_s39_a_member_ends_when_nobody_has_been_linked_for_its_lease(
    tmp_path: Path,
) -> None:
    """Whoever was to end it is gone without a word: no signal comes, and stdin stays open."""
    model = services.make_model(tmp_path)
    (tmp_path / "key").write_text("k" * 32)
    member, address = await start_member(model, tmp_path, "--lease-seconds", "2")
    service = LinkService(LinkAddress.parse(address), KEY, tell=lambda text: None)
    try:
        await service.start()
        engines = descendants(member.pid)
        assert engines, "its engine is a process of its own"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await member.wait()
        assert service.state == "ready", "who is linked keeps it"
        await service.close()
        assert await member.wait() == 0
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines))
    finally:
        await service.close()
        if member.returncode is None:
            member.kill()
            await member.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return found


@pytest.mark.slow
@partial(in_loop, seconds=300)
async def test_scale_f1_members_processes_are_killed_and_no_stream_is_lost(tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    model = services.make_model(tmp_path, **wide)
    (tmp_path / "key").write_text("k" * 32, encoding="ascii")
    started = [await start_member(model, tmp_path) for _ in range(2)]

    def make(name: str, changed: Callable[[], None], secret: bytes, _: int) -> LinkService:
        return LinkService(LinkAddress.parse(name), KEY, tell=lambda text: None, changed=changed)

    config = FleetConfig(replicas=0, members=tuple(address for _, address in started))
    fleet = Fleet(make, config, tell=lambda text: None, secret=KEY.page_secret)
    try:
        await fleet.start()
        async with asyncio.timeout(200):
            while fleet.num_ready < 2:
                await asyncio.sleep(0.01)
        made = [
            services.request(
                f"r{i}", tuple(range(i, i + 30)), max_tokens=200, temperature=0.8, seed=i
            )
            for i in range(16)
        ]
        quiet = [replace(each, request_id=f"q{each.request_id}") for each in made]
        expected = await asyncio.gather(*(services.token_ids(fleet, each) for each in quiet))
        begun = Counter[str]()

        async def follow(request: Request) -> list[int]:
            found: list[int] = []
            async for delta in fleet.follow(request):
                found += delta.token_ids
                begun[request.request_id] = len(found)
            return found

        going = [asyncio.create_task(follow(each)) for each in made]
        # Amid the answers, all of which have begun.
        await until(lambda: len(begun) == len(made))
        os.kill(started[0][0].pid, signal.SIGKILL)
        assert await asyncio.gather(*going) == expected
        stats = await fleet.stats()
        assert stats.fleet is not None and stats.fleet.resumed.get("true", 0) > 0
    finally:
        await fleet.close()
        for process, _ in started:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
    assert started[1][0].returncode == 0, "it ended with its stdin"
