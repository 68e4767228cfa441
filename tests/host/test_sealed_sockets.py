"""Sockets of two hosts that share a key: what goes through, and what ends them."""

from __future__ import annotations

import socket
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from cutaway.core.errors import ConfigError
from cutaway.host.link_key import LinkAddress, LinkKey
from cutaway.host.sealed_link import LinkLostError
from cutaway.host.sealed_socket import SealedSocket, ask_for_socket, grant_socket

KEY = LinkKey("k" * 40)


@contextmanager
def granting(key: LinkKey = KEY) -> Generator[tuple[LinkAddress, Future[SealedSocket]]]:
    """Where one is let in, and who comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as apart:
        address = LinkAddress("127.0.0.1", listener.getsockname()[1])
        yield address, apart.submit(lambda: grant_socket(listener.accept()[0], key))


def pair() -> tuple[SealedSocket, SealedSocket]:
    with granting() as (address, granted):
        asking = ask_for_socket(address, KEY)
        return asking, granted.result(10)


def test_bytes_come_as_they_went_in_pieces_of_any_size() -> None:
    one, two = pair()
    with closing(one), closing(two):
        one.sendall(b"hello")
        one.sendall(bytes(range(256)) * 5000)
        assert two.recv(2) == b"he" and two.recv(100) == b"llo"
        got = b""
        while len(got) < 1_280_000:
            got += two.recv(70_000)
        assert got == bytes(range(256)) * 5000
        two.sendall(b"back")
        assert one.recv(10) == b"back"
        assert one.own_host == "127.0.0.1" and one.where.startswith("127.0.0.1:")
        two.close()
        assert one.recv(1) == b"", "the end"


@pytest.mark.parametrize("place", [0, 5, 8, -1], ids=["length", "body", "body's end", "seal"])
def test_what_is_changed_on_the_way_ends_it(place: int) -> None:
    one, two = pair()
    with closing(one.plain) as plain, closing(two):
        wire = bytearray()

        class Way:
            def sendall(self, data: bytes) -> None:
                wire.extend(data)

        one.plain = Way()  # type: ignore[assignment]
        one.sendall(b"order")
        wire[place] ^= 1
        plain.sendall(wire)
        plain.shutdown(socket.SHUT_WR)
        assert two.recv(5) == b""


def test_what_is_played_again_ends_it() -> None:
    one, two = pair()
    with closing(one), closing(two):
        one.sendall(b"order")
        assert two.recv(5) == b"order"
        one._num_sent = 0  # as somebody who has recorded it
        one.sendall(b"order")
        assert two.recv(5) == b""


def test_another_key_is_told_to_who_asks() -> None:
    with granting() as (address, granted):
        with pytest.raises(ConfigError, match="has another key of links"):
            ask_for_socket(address, LinkKey("z" * 40))
        with pytest.raises(LinkLostError, match="another key"):
            granted.result(10)


def test_a_stranger_is_told_nothing() -> None:
    with (
        granting() as (address, granted),
        socket.create_connection((address.host, address.port)) as by,
    ):
        by.sendall(b"GET / HTTP/1.1\r\n" + bytes(32))
        with pytest.raises(LinkLostError, match="no rank of this version"):
            granted.result(10)
        assert by.recv(100) == b""


def test_who_listens_for_something_else_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as apart:
        address = LinkAddress("127.0.0.1", listener.getsockname()[1])

        def answer() -> None:
            with listener.accept()[0] as plain:
                plain.sendall(bytes(48))
                plain.recv(100)

        apart.submit(answer)
        with pytest.raises(ConfigError, match="is no leader of ranks of this version"):
            ask_for_socket(address, KEY)
