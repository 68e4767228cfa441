"""The view of merges against a search that knows nothing but the list of pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import engines
from cutaway import LLM
from cutaway.replay.look import Look
from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.merging import PairMerges
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.views import view_of
from cutaway.views.merges import MAX_CHARACTERS, MAX_PIECES, Merges
from cutaway.views.parts.drawing import columns
from cutaway.views.parts.query import Query
from cutaway.views.parts.subject import Subject
from spm_trained import trained
from subjects import answered

PAIRS = (("l", "l"), ("h", "e"), ("he", "ll"), ("o", "o"), ("hell", "o"))


def vocabulary(*, whole: tuple[str, ...] = (), control: tuple[str, ...] = ()) -> ByteBPE:
    """Bytes, what the pairs give, tokens that are taken whole, and control; words are pieces."""
    ids = {bytes([byte]): byte for byte in range(256)} | {b"<eos>": 256}
    ranks: dict[tuple[int, int], int] = {}
    merged: list[int] = []
    for left, right in PAIRS:
        ranks[ids[left.encode()], ids[right.encode()]] = len(merged)
        merged.append(ids.setdefault((left + right).encode(), len(ids)))
    pieces = {each.encode(): ids.setdefault(each.encode(), len(ids)) for each in whole}
    added = [
        AddedToken(token_id=len(ids) + i, content=each, is_control=True)
        for i, each in enumerate(control)
    ]
    return ByteBPE(
        Vocabulary(
            token_bytes={token_id: data for data, token_id in ids.items()},
            byte_ids=tuple(range(256)),
            merges=PairMerges(ranks, merged),
            patterns=(r"\s?\S+",),
            whole_pieces=pieces,
            added=tuple(added),
        )
    )


def searched(word: str) -> list[tuple[int, list[str]]]:
    """Rank and parts after each merge: the first pair of the list that is found, leftmost first."""
    parts, steps = list(word), []
    while found := [pair for pair in PAIRS if pair in pairwise(parts)]:
        at = list(pairwise(parts)).index(found[0])
        parts = [*parts[:at], "".join(found[0]), *parts[at + 2 :]]
        steps.append((PAIRS.index(found[0]), parts))
    return steps


def subject_of(tokenizer: Tokenizer, prompt: str = "hello") -> Subject:
    engine = engines.engine(replace(engines.loaded(), tokenizer=tokenizer))
    return Look(engine, answered(engine, tokenizer.encode(prompt), max_tokens=1)).subject


def shown(subject: Subject, text: str | None = None) -> Merges:
    payload = view_of("merges").show(subject, Query(text=text)).payload
    assert isinstance(payload, Merges)
    return payload


def test_steps_are_those_of_a_search() -> None:
    subject = subject_of(vocabulary())
    (piece,) = shown(subject, "hellooollo").pieces
    assert piece.start == tuple("hellooollo") and piece.cut == () and not piece.is_whole
    assert [(each.rank, list(each.parts)) for each in piece.steps] == searched("hellooollo")
    assert piece.steps[-1].parts == piece.texts == ("hell", "oo", "o", "ll", "o")
    lines = shown(subject, "hellooollo").draw().text().splitlines()
    assert lines[0] == "hellooollo  becomes 5 tokens: hell\u2502oo\u2502o\u2502ll\u2502o"
    assert lines[4].split() == [
        "1",
        "0",
        "l",
        "+",
        "l",
        "257",
        "h\u2502e\u2502ll" + "\u2502o" * 3 + "\u2502l\u2502l\u2502o",
    ]


def test_a_piece_taken_whole_says_so() -> None:
    subject = subject_of(vocabulary(whole=("hellish",)))
    (piece,) = shown(subject, "hellish").pieces
    assert piece.is_whole and piece.texts == ("hellish",) and piece.steps[-1].parts[0] == "hell"
    assert "taken whole, since it is a token" in shown(subject, "hellish").draw().text()


def test_the_longest_piece_of_the_prompt_is_shown_unless_told() -> None:
    payload = shown(subject_of(vocabulary(), "oo hellooo x"))
    assert [piece.text for piece in payload.pieces] == ["\u00b7hellooo"]
    assert payload.num_left_out == 2
    assert "left out: 2 other pieces" in payload.draw().text()


def test_long_and_many_pieces_are_left_out() -> None:
    subject = subject_of(vocabulary())
    payload = shown(subject, "l" * MAX_CHARACTERS + " o" * 20 + " " + "l" * MAX_CHARACTERS)
    assert len(payload.pieces) == MAX_PIECES and payload.num_left_out == 22 - MAX_PIECES
    lines = payload.draw().text().splitlines()
    assert max(map(columns, lines)) <= 100 and any("(30 steps)" in line for line in lines)
    assert "no piece of this text is split or merged" in shown(subject, "").draw().text()


def test_a_unigram_vocabulary_shows_its_best_cut(tmp_path) -> None:
    from cutaway.tokens.files.tokenizer_files import load_model_file

    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained("unigram", "defaults"))
    model = engines.loaded(vocab_size=1000)
    engine = engines.engine(replace(model, tokenizer=load_model_file(path)))
    subject = Look(engine, answered(engine, [5, 6], max_tokens=1)).subject
    (piece,) = shown(subject, "attention").pieces
    assert piece.steps == () and "".join(each.text for each in piece.cut) == "\u00b7attention"
    assert tuple(each.token_id for each in piece.cut) == piece.token_ids
    assert "the highest sum of scores" in shown(subject, "attention").draw().text()
    words = shown(subject, "attention " * 30)
    assert words.pieces[0].text == "\u00b7attention" and words.num_left_out == 22


@pytest.mark.slow
@pytest.mark.oracle
def test_smollm2_builds_gravity_from_letters() -> None:
    llm = LLM("smollm2", cache_tokens=208)
    answer = answered(llm.engine, llm.encode("What is gravity?"), max_tokens=1)
    payload = shown(Look(llm.engine, answer).subject)
    (piece,) = payload.pieces
    assert piece.texts == ("\u00b7gravity",) and piece.start == tuple("\u00b7gravity")
    assert [each.rank for each in piece.steps] == sorted(each.rank for each in piece.steps)
    assert piece.token_ids == (piece.steps[-1].token_id,) == (9354,)


def test_the_word_that_is_shown_first_is_one_that_a_person_wrote() -> None:
    tokenizer, prompt = vocabulary(control=("<turn>",)), list[int]()
    for text in ("system hellohellohello hello", "user oo hello", "model"):
        prompt += [*tokenizer.encode("<turn>", control=True), *tokenizer.encode(text)]
    engine = engines.engine(replace(engines.loaded(), tokenizer=tokenizer))
    subject = Look(engine, answered(engine, prompt, max_tokens=1)).subject
    assert [piece.text for piece in shown(subject).pieces] == ["\u00b7hello"]
