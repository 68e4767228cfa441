"""Learns a byte-level BPE vocabulary from text, one merge at a time; it can be stopped and saved.

The same merges as HF's BpeTrainer over the byte alphabet: the pair that occurs most often, and
among equals the one with the smaller ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, pairwise

from cutaway.tokens.added import AddedToken
from cutaway.tokens.byte_bpe import ByteBPE, Vocabulary
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.merging import Pair, PairMerges
from cutaway.tokens.patterns import GPT2
from cutaway.tokens.splitting import Splitter
from cutaway.tokens.unicode import BYTE_SYMBOLS, repair_surrogates

# Ids of the single bytes, in the order of their symbols: the same as in GPT-2 and in HF's trainer.
BYTES_BY_ID = tuple(sorted(range(256), key=BYTE_SYMBOLS.__getitem__))


@dataclass(frozen=True)
class LearnedMerge:
    """One step of learning: the pair that occurred most often became a token."""

    pair: Pair
    count: int  # how often the pair occurred
    token_id: int
    token: bytes


@dataclass(frozen=True)
class PairCount:
    """How often a pair of neighbours occurs in the text as it is now cut."""

    pair: Pair
    count: int


class BPELearner:
    """Learns merges from texts.

    patterns: how text is cut into words; pairs never span two words.
    Only how often each word occurs matters, so neither the order of the texts nor the hash seed
    changes a merge.
    """

    def __init__(self, texts: Iterable[str], *, patterns: Sequence[str] = (GPT2,)) -> None:
        self.patterns = tuple(patterns)
        splitter = Splitter(self.patterns)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(splitter.split(repair_surrogates(text)))
        id_of_byte = {byte: token_id for token_id, byte in enumerate(BYTES_BY_ID)}
        words = [[id_of_byte[byte] for byte in word.encode()] for word in counts]
        self._start(words, list(counts.values()), merges=[])

    def state(self) -> dict[str, object]:
        """Everything needed to go on later, as data that JSON can hold."""
        return {
            "patterns": list(self.patterns),
            "merges": [[*learned.pair, learned.count] for learned in self.merges],
            "words": [list(word) for word in self._words],
            "word_counts": list(self._word_counts),
        }

    @staticmethod
    def restore(state: object, *, file: str = "state") -> BPELearner:
        """The learner that state() described.

        file: where it came from, for messages.
        Raises: ModelFormatError naming the entry that is no part of such a state.
        """
        root = JsonNode(state, file)
        learner = BPELearner((), patterns=[each.text() for each in root["patterns"].items()])
        merges = [entry.numbers() for entry in root["merges"].items()]
        words = [word.numbers() for word in root["words"].items()]
        word_counts = root["word_counts"].numbers()
        if any(len(entry) != 3 for entry in merges):
            raise root["merges"].fault("a list of [left, right, count]")
        if len(words) != len(word_counts):
            raise root["word_counts"].fault(f"{len(words)} counts, one for each word")
        try:
            learner._start(words, word_counts, merges)
        except IndexError:
            raise root["merges"].fault("merges of tokens that were there before") from None
        if max(chain((0,), *words)) >= len(learner.tokens):
            raise root["words"].fault(f"ids below {len(learner.tokens)}")
        return learner

    def _start(
        self, words: list[list[int]], word_counts: list[int], merges: list[list[int]]
    ) -> None:
        self.tokens = [bytes([byte]) for byte in BYTES_BY_ID]
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self.merges: list[LearnedMerge] = []
        for left, right, count in merges:
            self._learn((left, right), count)
        self._words = words
        self._word_counts = word_counts
        self._num_tokens = sum(len(w) * n for w, n in zip(words, word_counts, strict=True))
        self._pair_counts: Counter[Pair] = Counter()
        self._words_of: dict[Pair, set[int]] = {}  # words that hold the pair, or once did
        for index, (word, count) in enumerate(zip(words, word_counts, strict=True)):
            for pair in pairwise(word):
                self._pair_counts[pair] += count
                self._words_of.setdefault(pair, set()).add(index)
        # Every pair with a count above 0 has an entry with at least that count; an entry with
        # another count than the pair's is stale.
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapify(self._heap)

    def step(self) -> LearnedMerge | None:
        """Merge the best pair everywhere; None when no pair is left."""
        best = self._pop_best()
        if best is None:
            return None
        learned = self._learn(best.pair, best.count)
        self._merge_everywhere(learned.pair, learned.token_id)
        return learned

    def run(self, num_merges: int) -> list[LearnedMerge]:
        """Up to that many steps; fewer when no pair is left."""
        return list(self._steps(num_merges))

    def _steps(self, num_merges: int) -> Iterator[LearnedMerge]:
        for _ in range(num_merges):
            learned = self.step()
            if learned is None:
                return
            yield learned

    @property
    def num_tokens(self) -> int:
        """In the texts, as they are cut now."""
        return self._num_tokens

    def top_pairs(self, num_pairs: int) -> list[PairCount]:
        """The most frequent pairs as they are now, best first: the first is merged next."""
        live = ((-count, pair) for pair, count in self._pair_counts.items())
        return [PairCount(pair, -count) for count, pair in nsmallest(num_pairs, live)]

    def tokenizer(self, *, control_tokens: Sequence[str] = (), eos: str | None = None) -> ByteBPE:
        """What was learned so far, with control tokens after it.

        eos: the one of them that ends an answer.
        """
        first = len(self.tokens)
        ids = {name: first + n for n, name in enumerate(control_tokens)}
        assert eos is None or eos in ids, "the end of an answer is one of the control tokens"
        ranks = {learned.pair: rank for rank, learned in enumerate(self.merges)}
        vocabulary = Vocabulary(
            token_bytes=dict(enumerate(self.tokens)),
            byte_ids=tuple(self._ids[bytes([byte])] for byte in range(256)),
            merges=PairMerges(ranks, [learned.token_id for learned in self.merges]),
            patterns=self.patterns,
            added=tuple(
                AddedToken(token_id=token_id, content=name, is_control=True)
                for name, token_id in ids.items()
            ),
        )
        return ByteBPE(vocabulary, eos_token_ids=[] if eos is None else [ids[eos]])

    def _learn(self, pair: Pair, count: int) -> LearnedMerge:
        left, right = pair
        token = self.tokens[left] + self.tokens[right]
        # Another pair may have made the same bytes before; then they keep their id.
        token_id = self._ids.setdefault(token, len(self.tokens))
        if token_id == len(self.tokens):
            self.tokens.append(token)
        self.merges.append(LearnedMerge(pair, count, token_id, token))
        return self.merges[-1]

    def _pop_best(self) -> PairCount | None:
        while self._heap:
            negative, pair = heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if count == -negative:
                return PairCount(pair, count)
            if 0 < count < -negative:
                heappush(self._heap, (-count, pair))
        return None

    def _merge_everywhere(self, pair: Pair, token_id: int) -> None:
        changes: Counter[Pair] = Counter()
        for index in self._words_of.pop(pair):
            count, before = self._word_counts[index], len(self._words[index])
            self._words[index], gone, come = _merge_word(self._words[index], pair, token_id)
            self._num_tokens -= count * (before - len(self._words[index]))
            for each in gone:
                changes[each] -= count
            for each in come:
                changes[each] += count
                self._words_of.setdefault(each, set()).add(index)
        del changes[pair], self._pair_counts[pair]  # none is left, overlaps included
        for changed, difference in changes.items():
            self._pair_counts[changed] += difference
            if self._pair_counts[changed] == 0:
                del self._pair_counts[changed]
                self._words_of.pop(changed, None)
            elif difference > 0:
                heappush(self._heap, (-self._pair_counts[changed], changed))


def _merge_word(
    word: list[int], pair: Pair, token_id: int
) -> tuple[list[int], list[Pair], list[Pair]]:
    """The word with the pair replaced from the left, and its neighbours' pairs gone and come.

    A pair between two replaced ones comes and goes again.
    """
    left, right = pair
    merged: list[int] = []
    gone: list[Pair] = []
    come: list[Pair] = []
    at, end = 0, len(word)
    while at < end:
        if word[at] == left and word[at + 1 : at + 2] == [right]:
            if merged:
                gone.append((merged[-1], left))
                come.append((merged[-1], token_id))
            merged.append(token_id)
            at += 2
            if at < end:
                gone.append((right, word[at]))
                come.append((token_id, word[at]))
        else:
            merged.append(word[at])
            at += 1
    return merged, gone, come
