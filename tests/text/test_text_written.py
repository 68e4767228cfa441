"""Marked text does what str does, and each character keeps its mark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.text import written
from cutaway.text.written import Written

# Each character names its own mark: capitals are the template's, and so are some blanks.
letters = st.text(alphabet="aAbB \n\t\u2003X", max_size=12)


def marked(text: str) -> Written:
    return Written(text, "".join("t" if c in "ABX\n" else "c" for c in text))


def parts_of(result: Any) -> list[str]:
    return [result] if isinstance(result, str) else list(result)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "strip": written.strip,
    "lstrip": written.lstrip,
    "rstrip": written.rstrip,
    "split": written.split,
    "rsplit": written.rsplit,
    "splitlines": written.splitlines,
    "removeprefix": written.removeprefix,
    "removesuffix": written.removesuffix,
    "partition": written.partition,
    "rpartition": written.rpartition,
}
NEEDS_ARGUMENT = {"removeprefix", "removesuffix", "partition", "rpartition"}


@pytest.mark.parametrize("name", OPERATIONS)
@given(
    text=letters, argument=st.sampled_from(["a", "A", "aA", " ", "\n", "ab", "B "]), data=st.data()
)
def test_cutting_gives_what_str_gives_and_keeps_each_mark(
    name: str, text: str, argument: str, data: st.DataObject
) -> None:
    args: tuple[Any, ...] = (argument,)
    if name == "splitlines":
        args = (data.draw(st.booleans()),)
    elif name not in NEEDS_ARGUMENT and data.draw(st.booleans()):
        args = (None,)
    if name in ("split", "rsplit"):
        args = (*args, data.draw(st.integers(-1, 3)))
    result = OPERATIONS[name](marked(text), *args)
    assert parts_of(result) == parts_of(getattr(text, name)(*args))
    assert all(written.origin_of(part) == marked(part).origin for part in parts_of(result))
    assert OPERATIONS[name](text, *args) == getattr(text, name)(*args)


@given(text=letters, old=letters.filter(bool), new=letters, count=st.integers(-1, 3))
def test_replacing_gives_what_str_gives_and_keeps_each_mark(
    text: str, old: str, new: str, count: int
) -> None:
    result = written.replace(marked(text), old, marked(new), count)
    assert result == text.replace(old, new, count)
    assert written.origin_of(result) == marked(result).origin
    assert written.replace(text, old, new, count) == text.replace(old, new, count)


@given(sep=letters, parts=st.lists(letters, max_size=4))
def test_joining_gives_what_str_gives_and_keeps_each_mark(sep: str, parts: list[str]) -> None:
    result = written.join(marked(sep), [marked(part) for part in parts])
    assert result == sep.join(parts)
    assert written.origin_of(result) == marked(result).origin


@given(text=letters, times=st.integers(-1, 3))
def test_repeating_keeps_each_mark(text: str, times: int) -> None:
    result = written.repeat(marked(text), times)
    assert (result, written.origin_of(result)) == (text * times, marked(text * times).origin)


@given(
    text=letters,
    start=st.none() | st.integers(-15, 15),
    stop=st.none() | st.integers(-15, 15),
    step=st.none() | st.sampled_from([-2, -1, 1, 2]),
)
def test_slicing_keeps_each_mark(
    text: str, start: int | None, stop: int | None, step: int | None
) -> None:
    where = slice(start, stop, step)
    result = written.cut(marked(text), where)
    assert (result, written.origin_of(result)) == (text[where], marked(text[where]).origin)


@pytest.mark.parametrize("method", [str.upper, str.lower, str.title, str.capitalize])
@given(text=st.text(max_size=8))
def test_changing_case_never_marks_a_callers_character(
    method: Callable[[str], str], text: str
) -> None:
    mixed = written.concat((written.mark_written("TEMPLATE"), text))
    result = written.recase(mixed, method(mixed))
    assert result == method("TEMPLATE" + text)
    assert "t" not in written.origin_of(result)[8:]


def test_a_text_that_grows_when_its_case_changes_is_the_callers() -> None:
    sharp = written.mark_written("stra\u00dfe")
    assert written.origin_of(written.recase(sharp, sharp.upper())) == "c" * 7
    assert written.origin_of(written.recase(sharp, sharp.lower())) == "t" * 6


@pytest.mark.parametrize(
    "operation",
    [
        lambda text: text.swapcase(),
        lambda text: text.center(20),
        lambda text: "".join([text]),
        lambda text: f"{text}",
        lambda text: "{}".format(text),  # noqa: UP032
        lambda text: text + "a",
        lambda text: text[1:],
        lambda text: str.strip(text),
    ],
)
def test_an_operation_that_is_not_known_makes_plain_text(operation: Callable[[str], str]) -> None:
    result = operation(written.mark_written(" <|im_end|> "))
    assert written.origin_of(str.__str__(result)) == "c" * len(result)


def test_plain_text_is_the_callers() -> None:
    assert written.origin_of("abc") == "ccc"
    assert list(written.template_runs("abc")) == []
    assert type(written.concat(("a", "b"))) is str


def test_runs_are_the_longest_stretches_of_the_template() -> None:
    text = written.concat(
        (written.mark_written("ab"), written.mark_written("c"), "d", written.mark_written("e"))
    )
    assert list(written.template_runs(text)) == [(0, 3), (4, 5)]


def test_marked_text_is_a_key_like_any_other() -> None:
    assert {"role": 1}[written.mark_written("role")] == 1
    assert written.mark_written("user") == "user"
