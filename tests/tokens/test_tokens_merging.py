"""Order of merges, against a recount-everything reference and by counting look-ups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_vocabulary import texts_of, tiny

from cutaway.tokens import merging
from cutaway.tokens.merging import (
    LONG_PIECE,
    NO_MERGE,
    PairMerges,
    RankMerges,
    merge,
    merge_long,
    merge_short,
)


def naive(token_ids: Sequence[int], table: merging.MergeTable) -> list[int]:
    """The definition: look at all neighbours, merge the leftmost of the lowest rank, repeat."""
    parts = list(token_ids)
    while True:
        found = [(table.rank(pair, NO_MERGE), at) for at, pair in enumerate(pairwise(parts))]
        rank, at = min(found, default=(NO_MERGE, 0))
        if rank == NO_MERGE:
            return parts
        parts[at : at + 2] = [table.merged_ids[rank]]


def random_table(rng: random.Random, num_merges: int) -> PairMerges:
    """Merges over a to d and over what they make, in random order of rank."""
    tokens = 4
    pairs: list[tuple[int, int]] = []
    while len(pairs) < num_merges:
        pair = (rng.randrange(tokens), rng.randrange(tokens))
        if pair not in pairs:
            pairs.append(pair)
            tokens += 1
    made = {pair: 4 + n for n, pair in enumerate(pairs)}
    rng.shuffle(pairs)
    return PairMerges({pair: n for n, pair in enumerate(pairs)}, [made[pair] for pair in pairs])


class CountingTable:
    """A table that counts how often it is asked."""

    def __init__(self, table: PairMerges) -> None:
        self._table = table
        self.merged_ids = table.merged_ids
        self.asked = 0

    def rank(self, pair: tuple[int, int], absent: int, /) -> int:
        self.asked += 1
        return self._table.rank(pair, absent)

    def describe(self) -> str:
        return self._table.describe()


@pytest.mark.parametrize("seed", range(8))
def test_a01_words_of_1_to_300_letters_equal_the_naive_reference(seed):
    rng = random.Random(seed)
    table = random_table(rng, 40)
    for length in range(1, 301, 1 + seed):
        word = [rng.randrange(4) for _ in range(length)]
        assert merge(word, table) == naive(word, table)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 2**32))
def test_short_words_equal_the_naive_reference(word, seed):
    table = random_table(random.Random(seed), 30)
    assert merge(word, table) == naive(word, table)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 2**32))
def test_a01_both_ways_equal_the_naive_reference(word, seed):
    table = random_table(random.Random(seed), 30)
    assert merge_short(word, table) == merge_long(word, table) == naive(word, table)


def test_a01_both_ways_agree_where_a_merge_makes_its_own_pair_again_and_where_ranks_are_shared():
    again = PairMerges({(0, 0): 0, (0, 1): 1}, [0, 1])  # a b of a hostile file
    tokens = {n: text for n, text in enumerate((b"a", b"b", b"aa", b"ab", b"aab", b"ba", b"aba"))}
    for table in (again, RankMerges(tokens)):
        for seed in range(200):
            rng = random.Random(seed)
            word = [rng.randrange(2) for _ in range(rng.randrange(40))]
            assert merge_short(word, table) == merge_long(word, table) == naive(word, table)


def test_a01_a_piece_of_any_length_stops_for_others(monkeypatch):
    breaths = []
    monkeypatch.setattr(merging, "breathe", lambda: breaths.append(1))
    table = random_table(random.Random(1), 40)
    merge([0, 1] * LONG_PIECE * 10, table)
    assert len(breaths) > 10


def test_a01_look_ups_grow_with_the_length_of_the_word():
    rng = random.Random(1)
    table = random_table(rng, 40)
    asked = []
    for length in (20_000, 40_000, 80_000):
        counting = CountingTable(table)
        merge([rng.randrange(4) for _ in range(length)], counting)
        asked.append(counting.asked)
    assert asked[1] / asked[0] < 2.1
    assert asked[2] / asked[1] < 2.1
    assert asked[0] < 4 * 20_000


def test_a01_a_word_of_100_000_letters_has_no_recursion_and_comes_back():
    tokenizer = tiny([("a", "a"), ("aa", "aa"), ("aaaa", "aaaa")])
    token_ids = tokenizer.encode("a" * 100_000)
    assert token_ids == [258] * 12_500
    rng = random.Random(2)
    letters = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=100_000))
    assert tokenizer.decode(tokenizer.encode(letters)) == letters


@pytest.mark.parametrize(
    ("merges", "text", "tokens"),
    [
        ([("b", "c"), ("a", "b")], "abc", ["a", "bc"]),
        ([("a", "b"), ("b", "c")], "abc", ["ab", "c"]),
        ([("a", "a")], "aaaaa", ["aa", "aa", "a"]),
        ([("a", "a"), ("aa", "aa")], "a" * 7, ["aaaa", "aa", "a"]),
    ],
)
def test_a02_rank_order_decides_not_length_nor_number_of_tokens(merges, text, tokens):
    assert texts_of(tiny(merges), text) == tokens


def test_a05_pieces_that_are_tokens_are_taken_whole_only_where_the_vocabulary_says_so():
    merges = [("a", "b"), ("c", "d")]
    assert texts_of(tiny(merges), "abcd") == ["ab", "cd"]
    assert texts_of(tiny(merges, whole=["abcd"]), "abcd") == ["abcd"]


def test_listed_pairs_merge_where_a_rank_file_would_merge_by_bytes():
    # abc is made of ab and c; a and bc have the same bytes but are no listed pair.
    tokens = {0: b"a", 1: b"b", 2: b"c", 3: b"bc", 4: b"ab", 5: b"abc"}
    listed = PairMerges({(1, 2): 0, (0, 1): 1, (4, 2): 2}, [3, 4, 5])
    assert merge([0, 1, 2], listed) == [0, 3]
    assert merge([0, 1, 2], RankMerges(tokens)) == [5]


def test_nothing_and_a_single_byte_merge_to_themselves():
    table = random_table(random.Random(0), 5)
    assert merge([], table) == []
    assert merge([3], table) == [3]
