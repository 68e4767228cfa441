"""Facts in a local file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway.cli.repl.remembered_facts import Fact, Memory, memory_file
from cutaway.core.errors import RequestError


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "folder" / "memory.sqlite3")


def test_looking_makes_no_file(memory: Memory) -> None:
    assert memory.facts() == []
    assert memory.forget() == 0
    assert not memory.path.exists()


def test_facts_stay_in_order_and_survive_the_process(memory: Memory) -> None:
    assert memory.add("my cat is Ada") == Fact(1, "my cat is Ada")
    memory.add("two\n lines")
    assert Memory(memory.path).facts() == [Fact(1, "my cat is Ada"), Fact(2, "two lines")]


def test_a_number_is_never_given_again(memory: Memory) -> None:
    memory.add("first")
    assert memory.forget(1) == 1
    assert memory.add("second").number == 2
    assert memory.forget(7) == 0


def test_what_is_forgotten_leaves_the_file(memory: Memory) -> None:
    memory.add("the password is swordfish")
    assert b"swordfish" in memory.path.read_bytes()
    assert memory.forget() == 1
    assert b"swordfish" not in memory.path.read_bytes()


@pytest.mark.parametrize("text", ["", " \n ", "x" * 501])
def test_an_empty_or_long_fact_is_refused(memory: Memory, text: str) -> None:
    with pytest.raises(RequestError, match="characters; it must have 1 to 500"):
        memory.add(text)


def test_a_file_that_is_no_database_is_named(memory: Memory) -> None:
    memory.path.parent.mkdir()
    memory.path.write_bytes(b"not a database, but long enough to be looked at" * 99)
    with pytest.raises(RequestError, match=r"memory\.sqlite3 cannot be used as memory"):
        memory.facts()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot be used as memory"):
        Memory(tmp_path / "file" / "memory.sqlite3").add("x")


def test_facts_lie_in_the_users_data_folder(tmp_path: Path) -> None:
    assert memory_file().is_relative_to(tmp_path)
