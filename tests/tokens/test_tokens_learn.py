"""Learning merges: ties, counts, stopping and going on, and the public trainer's merges."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models, pre_tokenizers, trainers

from cutaway.core.errors import ModelFormatError
from cutaway.tokens.learn_vocabulary import BYTES_BY_ID, BPELearner, PairCount
from cutaway.tokens.unicode import symbols_to_bytes
from oracles import prose

WORDS = r"\S+"


def merges_of(learner: BPELearner) -> list[tuple[bytes, bytes]]:
    tokens = learner.tokens
    return [(tokens[left], tokens[right]) for left, right in (m.pair for m in learner.merges)]


def hf_merges(texts: list[str], num_merges: int) -> tuple[list[tuple[bytes, ...]], dict]:
    theirs = HfTokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator(texts, trainer)
    found = json.loads(theirs.to_str())["model"]
    merges = [tuple(map(symbols_to_bytes, pair)) for pair in found["merges"]]
    return merges, {symbols_to_bytes(token): i for token, i in found["vocab"].items()}


def naive_merges(words: list[str], num_merges: int) -> list[tuple[tuple[int, int], int]]:
    """The definition: count every pair anew before each merge."""
    id_of = {byte: i for i, byte in enumerate(BYTES_BY_ID)}
    cut = [[id_of[byte] for byte in word.encode()] for word in words]
    tokens = [bytes([byte]) for byte in BYTES_BY_ID]
    found = []
    for _ in range(num_merges):
        counts = Counter(pair for word in cut for pair in pairwise(word))
        if not counts:
            break
        pair, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        token = tokens[pair[0]] + tokens[pair[1]]
        if token not in tokens:
            tokens.append(token)
        new = tokens.index(token)
        for word in cut:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == pair:
                    word[at : at + 2] = [new]
                at += 1
        found.append((pair, count))
    return found


@pytest.mark.parametrize("word", ["bbbaaaddddcccc", "aaabbbccccdddd"])
def test_k10_ties_go_to_the_smaller_ids_wherever_the_pairs_stand(word):
    learner = BPELearner([word])
    learner.run(4)
    assert merges_of(learner) == [(b"c", b"c"), (b"d", b"d"), (b"a", b"a"), (b"b", b"b")]


def test_k10_a_pair_that_overlaps_itself_is_merged_and_gone():
    learner = BPELearner(["aaaa"])
    assert [merge.token for merge in learner.run(5)] == [b"aa", b"aaaa"]
    assert learner.step() is None
    assert learner.top_pairs(3) == []


@pytest.mark.parametrize("seed", range(200))
def test_k10_merges_equal_counting_anew_each_time(seed):
    rng = random.Random(seed)
    alphabet = "ab" if seed % 2 else "abcd"
    words = ["".join(rng.choices(alphabet, k=rng.randrange(1, 14))) for _ in range(40)]
    learner = BPELearner([" ".join(words)], patterns=[WORDS])
    found = [(merge.pair, merge.count) for merge in learner.run(60)]
    # The blanks between the words are pieces of one byte, without a pair.
    assert found == naive_merges(words, 60)
    assert all(count > 0 for _, count in found)


def test_k10_neither_order_nor_repetition_of_texts_matters():
    texts = ["ab", "abc", "bcd", "bc", "dcba abab", "aaab"] * 3
    first = BPELearner(texts)
    first.run(20)
    for seed in range(5):
        shuffled = random.Random(seed).sample(texts, len(texts))
        again = BPELearner(iter(shuffled))
        again.run(20)
        assert again.merges == first.merges


@given(st.lists(st.text(st.sampled_from("ab c\u00e9'1"), max_size=30), max_size=6))
def test_merges_equal_hf_on_small_texts(texts):
    learner = BPELearner(texts)
    learner.run(25)
    theirs, ids = hf_merges(texts, 25)
    # HF counts tokens until the vocabulary is full, we count merges.
    assert merges_of(learner)[: len(theirs)] == theirs
    assert {token: i for i, token in enumerate(learner.tokens)}.items() >= ids.items()


@pytest.mark.oracle
@pytest.mark.slow
def test_1000_merges_over_1_mb_of_prose_equal_hf():
    text = prose("moby-dick")[:1_000_000]
    learner = BPELearner([text])
    learner.run(1_000)
    theirs, ids = hf_merges([text], 1_000)
    assert merges_of(learner) == theirs
    assert {token: i for i, token in enumerate(learner.tokens)} == ids


def test_each_step_tells_its_pair_count_and_token_and_what_is_next():
    learner = BPELearner(["hello hello help"])
    step = learner.step()
    assert step is not None
    assert (step.token, step.count, step.token_id) == (b"el", 3, 256)
    assert [learner.tokens[i] for i in step.pair] == [b"e", b"l"]
    top = learner.top_pairs(2)
    assert top == [PairCount(top[0].pair, 3), PairCount(top[1].pair, 2)]
    following = learner.step()
    assert following is not None
    assert (following.pair, following.count) == (top[0].pair, top[0].count)


@given(st.text(st.sampled_from("abc "), max_size=60), st.integers(0, 8))
def test_a_saved_learner_goes_on_as_if_it_had_not_stopped(text, before):
    learner = BPELearner([text], patterns=[WORDS])
    learner.run(before)
    restored = BPELearner.restore(json.loads(json.dumps(learner.state())))
    assert restored.merges == learner.merges
    assert restored.top_pairs(100) == learner.top_pairs(100)
    assert restored.run(10) == learner.run(10)
    assert restored.tokens == learner.tokens


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"patterns": None}, None),
        ({"patterns": [3]}, "patterns[0]"),
        ({"merges": [[1, 2]]}, "merges"),
        ({"merges": [[1, 900, 3]]}, "merges"),
        ({"words": [[1, 900]], "word_counts": [1]}, "words"),
        ({"words": [[1, "a"]], "word_counts": [1]}, "words[0][1]"),
        ({"words": [[1]], "word_counts": []}, "word_counts"),
    ],
)
def test_a_state_that_is_none_is_refused_with_its_entry(changes, field):
    state = BPELearner(["ab ab"]).state() | changes
    if field is None:
        assert BPELearner.restore(state).patterns == ()
        return
    with pytest.raises(ModelFormatError) as caught:
        BPELearner.restore(state, file="saved.json")
    assert (caught.value.file, caught.value.field) == ("saved.json", field)


def test_what_was_learned_is_a_tokenizer():
    text = "the cat sat on the mat, the cat sat"
    learner = BPELearner([text])
    learner.run(12)
    tokenizer = learner.tokenizer(control_tokens=["<bos>", "<eos>"], eos="<eos>")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<eos>", control=True) == [len(learner.tokens) + 1]
    assert tokenizer.eos_token_ids == {len(learner.tokens) + 1}
    # The learner's own cut of the words is what encoding gives.
    words = Counter(tuple(word) for word in learner._words)
    assert (
        Counter(piece.token_ids for piece in tokenizer.encode_pieces(text)).keys() == words.keys()
    )


def test_lone_surrogates_are_learned_as_the_replacement_character():
    assert BPELearner(["\ud83d"]).run(9) == BPELearner(["\ufffd"]).run(9)


def test_the_texts_get_shorter_by_what_each_merge_joins() -> None:
    learner = BPELearner(["aaaa banana banana aaa"])
    lengths = [learner.num_tokens]
    while learner.step() is not None:
        lengths.append(learner.num_tokens)
    state = learner.state()
    words, counts = state["words"], state["word_counts"]
    assert isinstance(words, list) and isinstance(counts, list)
    assert lengths[0] == 22 and lengths[-1] == sum(counts) == 4
    assert lengths == sorted(lengths, reverse=True) and all(len(word) == 1 for word in words)
