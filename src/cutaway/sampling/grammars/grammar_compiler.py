"""From a grammar to what answers start from: compiled in threads of its own, kept.

Knows llguidance and, of a tokenizer, what GrammarVocabulary asks. Free of torch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, cast

from cutaway.core.errors import GrammarError
from cutaway.core.grammar import Grammar
from cutaway.host.aside import run_aside
from cutaway.sampling.grammars.grammar_state import CompiledGrammar
from cutaway.sampling.grammars.grammar_text import (
    check_installed,
    compiler_limits,
    compiler_text,
    refusal,
)
from cutaway.sampling.grammars.grammar_trial import TrialCompiler

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_KEPT = 64  # grammars, the least recently asked for goes first
MAX_KEPT_BYTES = 2**20  # of their texts together
NUM_THREADS = 2  # so that one slow grammar delays another by its own time at most
# Of a compiling thread: what did not overflow the 4 MiB of the trial never does here.
_STACK_BYTES = 16 * 2**20


class GrammarVocabulary(Protocol):
    """What is asked of a tokenizer here."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are, 0 to vocab_size - 1."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that stand for no text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for."""
        ...

    def encode_bytes(self, data: bytes) -> list[int]:
        """Token ids of some bytes, without control tokens."""
        ...


class GrammarCompiler:
    """Compiles the grammars of one model; each once while it is kept.

    num_rows: logits of a row, which may be more than the vocabulary has ids.
    end_ids:  ids that end an answer.

    Threads and processes start with the first grammar. They end with close(), or with this
    object.

    Raises: GrammarError where llguidance is not installed.
    """

    def __init__(
        self, vocabulary: GrammarVocabulary, *, num_rows: int, end_ids: frozenset[int]
    ) -> None:
        check_installed()
        self._words = _Words(vocabulary, num_rows, end_ids)
        self._kept: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._tasks: SimpleQueue[Callable[[TrialCompiler], None] | None] = SimpleQueue()
        self._is_started = False

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """What answers start from, or the GrammarError that says why there is nothing."""
        known = self._kept.get(grammar)
        if known is not None:
            self._kept.move_to_end(grammar)
            return known
        self._start()
        made: Future[CompiledGrammar] = Future()
        words = self._words
        self._tasks.put(lambda trial: _fulfil(made, grammar, words, trial))
        self._kept[grammar] = made
        while len(self._kept) > MAX_KEPT or self._num_bytes > MAX_KEPT_BYTES:
            self._kept.popitem(last=False)
        return made

    def close(self) -> None:
        """End threads and processes once they have done what was asked."""
        for _ in range(NUM_THREADS):
            self._tasks.put(None)

    def __del__(self) -> None:
        with suppress(AttributeError):  # not even made
            self.close()

    @property
    def _num_bytes(self) -> int:
        return sum(len(grammar.text) for grammar in self._kept)

    def _start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        for _ in range(NUM_THREADS):
            threading.Thread(
                target=_work, args=(self._tasks,), name="cutaway-grammar", daemon=True
            ).start()


def result_of(made: Future[CompiledGrammar]) -> CompiledGrammar:
    """What answers start from, once it is made.

    Raises: GrammarError, a new one for whoever asks. What is kept is never raised: it would hold
    the frames that it passed for each who sends the same grammar, and what they hold with them.
    """
    fault = made.exception()
    if fault is None:
        return made.result()
    assert isinstance(fault, GrammarError), "whatever befell the compiler is told as that"
    raise GrammarError(str(fault), param=fault.param)


def _work(tasks: SimpleQueue[Callable[[TrialCompiler], None] | None]) -> None:
    trial = TrialCompiler()
    try:
        while (task := tasks.get()) is not None:
            task(trial)
    finally:
        trial.close()


def _fulfil(
    made: Future[CompiledGrammar], grammar: Grammar, words: _Words, trial: TrialCompiler
) -> None:
    try:
        if grammar.kind not in _SAFE_KINDS:
            trial.check(grammar)
        # Python's part comes first: who gives way must not hold the interpreter.
        work = partial(_compiled, words.tokenizer, compiler_text(grammar), words.end_ids)
        made.set_result(run_aside(work, stack_bytes=_STACK_BYTES))
    except GrammarError as error:
        made.set_exception(error)
    except BaseException as fault:  # the compiler's panics are no Exception
        error = GrammarError(f"grammar cannot be compiled: {refusal(str(fault))}")
        made.set_exception(error)


_SAFE_KINDS = ("json_object", "choice")  # their cost is known


def _compiled(tokenizer: LLTokenizer, text: str, end_ids: frozenset[int]) -> CompiledGrammar:
    from llguidance import LLMatcher

    matcher: LLMatcher = LLMatcher(tokenizer, text, log_level=0, limits=compiler_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()  # the first is the slowest
    if matcher.is_error():
        raise GrammarError(f"grammar cannot be compiled: {refusal(matcher.get_error())}")
    return CompiledGrammar(matcher, end_ids)


class _Words:
    """The vocabulary as llguidance reads it; built by the thread that needs it first."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, vocabulary: GrammarVocabulary, num_rows: int, end_ids: frozenset[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self.end_ids = end_ids
        # A model without an end gets one past its rows: a mask's bits there are not read.
        self._ends = sorted(end_ids) or [num_rows]

    @property
    def tokenizer(self) -> LLTokenizer:
        with self._lock:
            return self._tokenizer

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        num_words = max(self._num_rows, self._ends[-1] + 1)
        self.eos_token_id = self._ends[0]
        self.special_token_ids = sorted(self._vocabulary.control_ids)
        self.tokens = [self._word(token_id) for token_id in range(num_words)]
        # Any object with these attributes will do; the stub names its own class only.
        return LLTokenizer(cast("str", self), n_vocab=num_words, eos_token=self._ends)

    def _word(self, token_id: int) -> bytes:
        """Bytes of a token; none for a row that has no token, so that it never fits."""
        if token_id >= self._vocabulary.vocab_size:
            return b""
        data = self._vocabulary.token_bytes(token_id)
        return b"" if data == f"<{token_id}>".encode() else data

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.encode_bytes(text.encode())
