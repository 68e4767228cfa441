"""One answer from tokens to text, streamed or whole, and every way in which it can end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.request import SamplingParams
from cutaway.stream.text import TextPiece, TextStream, eos_token_ids, stop_token_ids

EOS = 0
CONTROL = {"<|eos|>": EOS, "<|eot|>": 1}
VOCABULARY = [b"<|eos|>", b"<|eot|>", b"a", b"b", b"ab", b" ", b"\n", b"\xf0\x9f", b"\xa6\x99"]
VOCABULARY += [b"\xc3", b"\xa9", b"<obs>", b"injury.", b"\x80", b"bab", "\u00e9a".encode()]
TOKENS = {token: token_id for token_id, token in enumerate(VOCABULARY)}
HIDDEN = frozenset(CONTROL.values())


def stream(*, eos: tuple[int, ...] = (EOS,), **params: Any) -> TextStream:
    asked = SamplingParams(**params)
    return TextStream(
        asked,
        VOCABULARY.__getitem__,
        skipped=HIDDEN if asked.skip_special_tokens else frozenset(),
        ending=stop_token_ids(asked, eos, CONTROL),
    )


def run(answer: TextStream, tokens: list[int]) -> tuple[list[str], str | int | None]:
    """What each token gives until the answer ends, what is left, and what ended it."""
    shown: list[str] = []
    for token_id in tokens:
        piece = answer.push(token_id)
        shown.append(piece.text)
        if piece.stopped_by is not None:
            return [*shown, answer.finish()], piece.stopped_by
    return [*shown, answer.finish()], None


def ids(*tokens: bytes) -> list[int]:
    return [TOKENS[token] for token in tokens]


def naive(tokens: list[int], params: SamplingParams) -> tuple[str, str | int | None]:
    """The whole answer at once: find where it ends, token by token, then cut the text once."""
    ending = stop_token_ids(params, (EOS,), CONTROL)
    hidden = HIDDEN if params.skip_special_tokens else frozenset[int]()
    data = b""
    for index, token_id in enumerate(tokens):
        may_end = index + 1 > params.min_tokens
        own = b"" if token_id in hidden else VOCABULARY[token_id]
        if may_end and token_id in ending:
            data += own if params.include_stop else b""
            return data.decode(errors="replace"), ending[token_id]
        before = len(whole(data))
        data += own
        if may_end and (found := first_stop(whole(data), before, params.stop)):
            end, stop = found
            text = whole(data)
            return text[: end if params.include_stop else end - len(stop)], stop
    return data.decode(errors="replace"), None


def whole(data: bytes) -> str:
    """The characters that more bytes cannot change."""
    unfinished = next((n for n in (3, 2, 1) if is_start(data[-n:]) and len(data) >= n), 0)
    return data[: len(data) - unfinished].decode(errors="replace")


def is_start(data: bytes) -> bool:
    """Whether the bytes are the start of one character and no more."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def first_stop(text: str, after: int, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """End and stop string of the match that is complete first beyond a position; the longest."""
    for end in range(after + 1, len(text) + 1):
        fitting = [stop for stop in stops if text.endswith(stop, 0, end)]
        if fitting:
            return end, max(fitting, key=len)
    return None


@given(
    tokens=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=14),
    stops=st.lists(
        st.sampled_from(["ab", "ba", "b", "a b", "\u00e9", "\ufffd", "<obs>", "bb\n", "<|eot|>"]),
        max_size=3,
    ),
    stop_ids=st.sampled_from([(), (TOKENS[b"<obs>"],), (TOKENS[b"\xc3"],)]),
    min_tokens=st.integers(0, 6),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_p7_streamed_text_equals_the_whole_for_every_input(
    tokens: list[int],
    stops: list[str],
    stop_ids: tuple[int, ...],
    min_tokens: int,
    flags: tuple[bool, bool, bool],
) -> None:
    params: dict[str, Any] = {
        "stop": tuple(stops),
        "stop_token_ids": stop_ids,
        "min_tokens": min_tokens,
        "include_stop": flags[0],
        "ignore_eos": flags[1],
        "skip_special_tokens": flags[2],
    }
    shown, stopped_by = run(stream(**params), tokens)
    assert ("".join(shown), stopped_by) == naive(tokens, SamplingParams(**params))


def test_b04_a_limit_in_the_middle_of_a_character_leaves_one_replacement_character() -> None:
    assert run(stream(), ids(b"a", b"\xf0\x9f")) == (["a", "", "\ufffd"], None)


def test_b04_an_end_in_the_middle_of_a_character_does_too() -> None:
    assert run(stream(), [*ids(b"a", b"\xf0\x9f"), EOS]) == (["a", "", "\ufffd", ""], EOS)


def test_b06_an_end_gives_out_what_was_withheld() -> None:
    answer = stream(stop=("ab\n",))
    assert run(answer, [*ids(b"b", b"ab"), EOS]) == (["b", "", "ab", ""], EOS)


@pytest.mark.parametrize("include_stop", [False, True])
def test_b07_an_ordinary_ending_token_is_shown_only_if_asked_for(include_stop: bool) -> None:
    answer = stream(stop_token_ids=(TOKENS[b"<obs>"],), include_stop=include_stop)
    shown, stopped_by = run(answer, ids(b"a", b"<obs>"))
    assert "".join(shown) == ("a<obs>" if include_stop else "a")
    assert stopped_by == TOKENS[b"<obs>"]


@pytest.mark.parametrize("include_stop", [False, True])
def test_b07_a_hidden_ending_token_cuts_nothing_off_the_text(include_stop: bool) -> None:
    shown, stopped_by = run(stream(include_stop=include_stop), [*ids(b"injury."), EOS])
    assert ("".join(shown), stopped_by) == ("injury.", EOS)


def test_b07_a_shown_ending_token_is_shown_only_if_asked_for() -> None:
    asked = {"skip_special_tokens": False}
    assert "".join(run(stream(**asked), [*ids(b"a"), EOS])[0]) == "a"
    assert "".join(run(stream(include_stop=True, **asked), [*ids(b"a"), EOS])[0]) == "a<|eos|>"


@pytest.mark.parametrize("skip", [True, False])
def test_b08_a_stop_string_that_is_a_control_token_ends_at_that_token(skip: bool) -> None:
    answer = stream(stop=("<|eot|>",), skip_special_tokens=skip)
    assert run(answer, [*ids(b"a"), CONTROL["<|eot|>"], *ids(b"b")]) == (["a", "", ""], "<|eot|>")


def test_b09_text_after_the_stop_in_the_same_token_is_gone() -> None:
    assert run(stream(stop=("njur",)), ids(b"injury.", b"a")) == (["i", ""], "njur")


def test_b10_every_end_that_the_files_name_ends_the_answer() -> None:
    eos = eos_token_ids(1, [1, 106], None, 7, ())
    assert eos == {1, 106, 7}
    params = SamplingParams(stop_token_ids=(5,), stop=("<|eot|>", "other"))
    assert stop_token_ids(params, eos, {"<|eot|>": 9, "<|x|>": 10}) == {
        **{1: 1, 106: 106, 7: 7, 5: 5},
        9: "<|eot|>",
    }


def test_b10_ignoring_the_models_ends_leaves_the_requests_own() -> None:
    params = SamplingParams(stop_token_ids=(5,), stop=("<|eot|>",), ignore_eos=True)
    assert stop_token_ids(params, (1, 9), {"<|eot|>": 9}) == {5: 5, 9: "<|eot|>"}
    shown, stopped_by = run(stream(ignore_eos=True), [*ids(b"a"), EOS, *ids(b"b")])
    assert ("".join(shown), stopped_by) == ("ab", None)


def test_b11_nothing_ends_the_answer_before_min_tokens_exist() -> None:
    answer = stream(min_tokens=4, stop=("b",))
    assert run(answer, [*ids(b"a", b"b", b"ab"), EOS, *ids(b"a"), *ids(b"b")]) == (
        ["a", "b", "ab", "", "a", "", ""],
        "b",
    )
    assert run(stream(min_tokens=2), [EOS, EOS, EOS]) == (["", "", "", ""], EOS)


def test_b11_a_stop_string_over_the_border_counts_and_is_cut_off_whole() -> None:
    answer = stream(min_tokens=2, stop=("ab\n",))
    assert run(answer, ids(b"b", b"ab", b"\n")) == (["b", "", "", ""], "ab\n")


def test_b11_a_stop_string_that_the_last_of_them_completes_is_passed_over() -> None:
    answer = stream(min_tokens=2, stop=("ab",))
    assert run(answer, ids(b"b", b"ab", b"a")) == (["b", "ab", "", "a"], None)


def test_p6_each_piece_tells_its_bytes_and_what_waits() -> None:
    answer = stream(stop=("ab\n",))
    pieces = [answer.push(i) for i in [*ids(b"ab", b"\xf0\x9f", b"\xa6\x99"), CONTROL["<|eot|>"]]]
    assert pieces == [
        TextPiece("", None, b"ab", b"", "ab"),
        TextPiece("", None, b"\xf0\x9f", b"\xf0\x9f", "ab"),
        TextPiece("ab\U0001f999", None, b"\xa6\x99", b"", ""),
        TextPiece("", None, b"", b"", ""),
    ]


def test_text_alone_is_that_of_the_pieces() -> None:
    for stop, token_ids in [((), ids(b"a", b"\xf0\x9f", b"b")), (("ab",), ids(b"a", b"b"))]:
        pieces, texts = stream(stop=stop), stream(stop=stop)
        for token_id in token_ids:
            piece = pieces.push(token_id)
            assert (texts.advance(token_id), texts.stopped_by) == (piece.text, piece.stopped_by)


def test_nothing_follows_the_end() -> None:
    answer = stream()
    answer.push(EOS)
    with pytest.raises(AssertionError, match="nothing follows the end"):
        answer.push(TOKENS[b"a"])
    assert (answer.finish(), answer.finish()) == ("", "")
    cut_short = stream(stop=("ab\n",))
    cut_short.push(TOKENS[b"ab"])
    assert (cut_short.finish(), cut_short.finish()) == ("ab", "")
    with pytest.raises(AssertionError, match="nothing follows the end"):
        cut_short.push(TOKENS[b"a"])
