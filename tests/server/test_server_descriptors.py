"""Descriptors: the limit is raised as far as it goes, and who finds none left is let go."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import sys

import pytest

from cutaway.server.entry.descriptors import KEPT_FOR_OTHERS, Listener, fit_to_descriptors
from cutaway.server.run import listening
from cutaway.server.server_config import ServerConfig

RAISED = """
import resource
from cutaway.server.entry.descriptors import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["200", "200", "200"]


def test_open_requests_fit_the_descriptors() -> None:
    assert fit_to_descriptors(ServerConfig(), 200).max_open_requests == 200 - KEPT_FOR_OTHERS
    assert fit_to_descriptors(ServerConfig(), 65_536).max_open_requests == 1024
    assert fit_to_descriptors(ServerConfig(), 10).max_open_requests == 1


@pytest.fixture
def listener() -> Listener:
    return listening(ServerConfig(port=0))


def test_where_no_connection_is_idle_a_newcomer_is_let_go_and_it_is_told_once(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    honest, is_scarce = socket.socket.accept, [True]

    def accept(self: socket.socket) -> tuple[socket.socket, object]:
        if is_scarce[0] and listener._spare >= 0:  # what is kept for this is not given up yet
            raise OSError(errno.EMFILE, "Too many open files")
        return honest(self)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with listener, caplog.at_level("WARNING", "cutaway.server"):
        address = listener.getsockname()[:2]
        for _ in range(3):
            with socket.create_connection(address, timeout=60) as client:
                with pytest.raises(BlockingIOError):
                    listener.accept()
                assert client.recv(1) == b""
        is_scarce[0] = False
        with socket.create_connection(address, timeout=60):
            listener.accept()[0].close()
    (record,) = caplog.records
    told = record.__dict__["fields"]
    assert record.message == "out_of_descriptors" and told["closed"] == 1
    assert told["limit"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_idle_connections_make_room_first(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(_: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    asked: list[int] = []
    listener.make_room = lambda: asked.append(1) or 1
    with listener:
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert asked == [1]


def test_other_faults_are_passed_on(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(_: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with listener, pytest.raises(PermissionError):
        listener.accept()
