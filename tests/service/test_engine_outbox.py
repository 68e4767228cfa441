"""What is said to a slow reader waits beside the engine, in order and up to a bound."""

from __future__ import annotations

import socket
import threading

import pytest

from cutaway.service.outbox import Outbox


def read(link: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        parts += link.recv(count - len(parts))
    return bytes(parts)


def test_a_reader_that_stands_still_stalls_nobody_and_misses_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(ours)
        messages = [bytes([number % 256]) * 10_000 for number in range(500)]
        for message in messages:  # 5 MB: more than any socket takes, and nobody reads
            outbox.put(message)
        assert read(theirs, 5_000_000) == b"".join(messages)
        outbox.close(60)
        outbox.put(b"after")
        assert read(theirs, 5) == b"after"


def test_over_its_bound_who_says_more_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox, num_said = Outbox(ours, most=100_000), 0

        def say() -> None:
            nonlocal num_said
            for _ in range(400):
                outbox.put(b"x" * 10_000)
                num_said += 1

        thread = threading.Thread(target=say)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "4 MB do not fit into a socket and 100 kB"
        assert read(theirs, 4_000_000) == b"x" * 4_000_000
        thread.join(60)
        assert num_said == 400


def test_who_is_gone_is_told_to_the_next_who_says_something() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        outbox = Outbox(ours)
        theirs.close()
        with pytest.raises(OSError, match=r"."):
            for _ in range(1000):
                outbox.put(b"x" * 100_000)
