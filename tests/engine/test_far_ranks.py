"""Ranks of other hosts, as processes that join over TCP: the bits of one, and who may not join."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from test_rank_processes import NATIVE, SHAPE, is_gone, told

import services
from cutaway.core.errors import ConfigError
from cutaway.core.version import __version__
from cutaway.engine.breaks import EngineLostError
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.ranks import far_ranks, start_ranks
from cutaway.engine.ranks.rank_messages import AskToJoin, TurnAway, receive_order, send
from cutaway.host.file_digest import digest_files
from cutaway.host.link_key import VARIABLE, LinkAddress, LinkKey
from cutaway.host.sealed_socket import ask_for_socket
from cutaway.replay.recorded_answers import verify_answer
from program import command, environment

KEY = "k" * 40


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "link.key"
    file.write_text(KEY, encoding="ascii")
    return file


@contextmanager
def host_of(
    model: str, address: str, key_file: Path, *, rank: int = 1
) -> Generator[subprocess.Popen[str]]:
    """`cutaway rank`, as it runs on another host."""
    made = subprocess.Popen(
        [
            *command("rank", model, "--join", address, "--rank", str(rank)),
            *("--link-key-file", str(key_file)),
        ],
        env=environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield made
    finally:
        made.kill()
        made.wait()
        assert made.stderr is not None
        made.stderr.close()


def lead(model: str, address: str, key_file: Path, dtype: str = "auto", **settings: Any) -> Engine:
    settings = {"tensor": 2, **settings}
    return build_engine(
        model,
        EngineConfig(
            device="cpu",
            dtype=dtype,
            cache_tokens=1024,
            page_size=8,
            rank_listen=address,
            rank_key_file=str(key_file),
            **settings,
        ),
    )


def child_of(pid: int) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.02)
    raise AssertionError("it has started nothing")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", [NATIVE])
def test_ranks_of_other_hosts_give_the_rows_of_one_and_join_again(
    tmp_path: Path, key_file: Path, dtype: str
) -> None:
    """One host has rows of all layers; after that group was broken, whole layers of another."""
    model, address = services.make_model(tmp_path, **SHAPE), free_address()
    alone = build_engine(
        model, EngineConfig(device="cpu", dtype=dtype, cache_tokens=1024, page_size=8)
    )
    expected = told(alone)
    with host_of(model, address, key_file) as host:
        rows = lead(model, address, key_file, dtype)
        assert told(rows) == expected
        assert rows.ledger is not None
        assert all(verify_answer(rows, answer).is_exact for answer in rows.ledger.answers)
        first = child_of(host.pid)
        os.kill(first, signal.SIGKILL)
        assert rows.model.ranks is not None
        services.run_apart(services.until(lambda: rows.model.ranks.is_lost))  # type: ignore[union-attr]
        with pytest.raises(EngineLostError, match="rank 1 of the model ended"):
            told(rows)
        layers = lead(model, address, key_file, dtype, tensor=1, pipeline=2)
        assert told(layers) == expected, "the host came again, and is right"
        assert layers.ledger is not None
        assert all(verify_answer(layers, answer).is_exact for answer in layers.ledger.answers)
        second = child_of(host.pid)
        assert second != first and layers.model.ranks is not None
        layers.model.ranks.close()
        assert is_gone(second), "a rank ends with its leader"
        host.send_signal(signal.SIGTERM)
        assert host.wait(20) == 0


@pytest.mark.timeout(200)
def test_a_rank_whose_leader_is_killed_ends_though_another_holds_it_in_a_gather(
    tmp_path: Path, key_file: Path
) -> None:
    """Three ranks: the leader's process is killed, and one rank is stopped, so the third waits."""
    model, address = services.make_model(tmp_path, **SHAPE), free_address()
    leading = subprocess.Popen(
        [
            *command("complete", "Hello", "--model", model, "--tensor", "3", "--device", "cpu"),
            *("--rank-listen", address, "--rank-key-file", str(key_file), "--ignore-eos"),
            *("--cache-tokens", "4096", "--max-tokens", "200"),
        ],
        env=environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with host_of(model, address, key_file) as one, host_of(model, address, key_file, rank=2) as two:
        try:
            assert leading.stderr is not None
            joined = [line for line in leading.stderr if "has joined from" in line][:2]
            assert len(joined) == 2 or leading.wait() == 0
            first, second = child_of(one.pid), child_of(two.pid)
            os.kill(second, signal.SIGSTOP)
            leading.kill()
            assert is_gone(first, within=20)
            os.kill(second, signal.SIGCONT)
            assert is_gone(second, within=20)
        finally:
            leading.kill()
            leading.wait()
            assert leading.stderr is not None
            leading.stderr.close()


def test_scale_s01_ranks_of_other_hosts_that_do_not_come_are_named(
    tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_ranks, "JOIN_SECONDS", 0.2)
    model, address = services.make_model(tmp_path, **SHAPE), free_address()
    words = rf"ranks 1, 2 of 3 did not join at {re.escape(address)} within 0\.2 s\. .*cutaway rank"
    with pytest.raises(ConfigError, match=words):
        lead(model, address, key_file, tensor=3)
    with pytest.raises(ConfigError, match=words):
        lead(model, address, key_file, tensor=3)  # the port is free again


@pytest.fixture
def followers(tmp_path: Path) -> far_ranks.FarFollowers:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    digest = digest_files(tmp_path / "config.json")
    return far_ranks.FarFollowers(size=2, files=digest, rank_bytes=2**31)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "0.0.1"}, rf"it runs Cutaway 0\.0\.1 and rank 0 {re.escape(__version__)}"),
        ({"rank": 2}, "there are 2 ranks, and those that join are 1 to 1"),
        ({"files": "other"}, "its files of the model are not those of rank 0"),
        ({"free": 2**30}, r"takes about 2\.0 GiB, and 1\.0 GiB are free there"),
    ],
)
def test_scale_s16_s36_who_may_not_join_is_told_why(
    followers: far_ranks.FarFollowers, changes: dict[str, Any], words: str
) -> None:
    address = LinkAddress.parse(free_address())
    fine = {"rank": 1, "version": __version__, "files": followers._files, "free": 2**32}
    leading = threading.Thread(
        target=lambda: followers.gather(address, LinkKey(KEY), 30), daemon=True
    )
    leading.start()

    def ask(**fields: Any) -> Any:
        end = time.monotonic() + 20
        while True:
            try:
                link = ask_for_socket(address, LinkKey(KEY))
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)
        send(link, AskToJoin(**fields))
        return link

    refused = ask(**{**fine, **changes})
    order = receive_order(refused)
    assert isinstance(order, TurnAway) and re.search(words, order.why), order
    refused.close()
    taken = ask(**fine)
    leading.join(20)
    assert len(followers.links) == 1, "the next one joins all the same"
    followers.end()
    taken.close()


@pytest.mark.timeout(120)
def test_a_rank_with_another_key_ends_and_says_so(tmp_path: Path, key_file: Path) -> None:
    model, address = services.make_model(tmp_path, **SHAPE), free_address()
    other = tmp_path / "other.key"
    other.write_text("z" * 40, encoding="ascii")
    followers = far_ranks.FarFollowers(size=2, files="", rank_bytes=0)

    def gather() -> None:
        with suppress(ConfigError):  # nobody joins; it goes on behind this test
            followers.gather(LinkAddress.parse(address), LinkKey(KEY), 60)

    leading = threading.Thread(target=gather, daemon=True)
    leading.start()
    with host_of(model, address, other) as host:
        assert host.wait(60) == 2
        assert host.stderr is not None
        assert f"{address} has another key of links" in host.stderr.read()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank_listen": "tcp://127.0.0.1:7071"}, "there is one rank. Set tensor or pipeline"),
        ({"rank_listen": "here", "tensor": 2}, 'the address of a link is "here"'),
    ],
)
def test_what_cannot_be_listened_at_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(**settings)


def test_a_leader_without_a_key_is_told_of_the_setting_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of --link-key-file, which `serve` takes for members: it would change nothing."""
    monkeypatch.delenv(VARIABLE, raising=False)
    model = services.make_model(tmp_path, **SHAPE)
    config = EngineConfig(device="cpu", tensor=2, rank_listen=free_address())
    with pytest.raises(ConfigError, match=f"neither --rank-key-file nor {VARIABLE} gives one"):
        build_engine(model, config)


def test_a_digest_tells_files_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
        (folder / "model.safetensors").write_bytes(bytes(300_000))
    assert digest_files(one) == digest_files(two)
    (two / "model.safetensors").write_bytes(bytes(299_999) + b"x")
    assert digest_files(one) != digest_files(two), "its last byte"
    (two / "model.safetensors").write_bytes(bytes(300_001))
    assert digest_files(one) != digest_files(two), "its size"
