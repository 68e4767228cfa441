"""Compiles grammars on trial in a process of its own, which may hang or crash in our stead.

The compiler's limits do not bound everything: an intersection of thirty regexes runs for minutes
and a chain of 1,300 references overflows the stack. As a program (`python -m`) this module is that
process: it reads one JSON array [kind, text] a line and answers one JSON string, the complaint, or
null where there was no end to it. Each is compiled in a fork, so that what ends one ends no other:
a Python that starts anew, with the compiler, takes a core for a third of a second.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import cast

from cutaway.core.errors import GrammarError
from cutaway.core.grammar import Grammar
from cutaway.host.apart import HAS_FORKS, ApartProcess, say
from cutaway.host.aside import PriorityAllowance, run_aside
from cutaway.sampling.grammars.grammar_text import compiler_limits, compiler_text, refusal

SECONDS = 1.0  # of computing; the largest grammars that people write take a fifth of a second
# By the clock: on a machine that is busy, what computes for a moment may take long.
_FORK_SECONDS = 30.0
_ANSWER_SECONDS = 60.0  # then the process itself hangs
_MAX_BYTES = 2**30  # of the process's memory
_STACK_BYTES = 4 * 2**20  # half of what a thread has that compiles in earnest, or less
_MOST_ANSWER = 2**16  # bytes, what a pipe holds at the least; a refusal has 300 characters
_HAS_TIMERS = hasattr(signal, "setitimer")  # where not, the clock has to do


class TrialCompiler:
    """One process, started at the first trial and again after it was lost. Not thread-safe."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._apart = ApartProcess(__name__, str(seconds))

    def check(self, grammar: Grammar) -> None:
        """Raise GrammarError when the grammar is at fault, or costs too much to compile."""
        most = _ANSWER_SECONDS if _HAS_TIMERS else self._seconds
        self._apart.ask(json.dumps([grammar.kind, grammar.text]))
        answer = self._apart.hear(most)
        if not answer:
            self._apart.close()
        error = json.loads(answer) if answer else None
        if error is None:
            raise GrammarError(
                f"grammar is too complex: it was not compiled within {self._seconds:g} seconds "
                "and a bounded memory. Use fewer patterns, references and repetitions."
            )
        if error:
            raise GrammarError(f"grammar cannot be compiled: {error}")

    def close(self) -> None:
        """End the process."""
        self._apart.close()


# Everything below runs in the process.


class ByteVocabulary:
    """The smallest vocabulary: each byte is a token, and 256 ends. llguidance reads these names."""

    is_tokenizer_wrapper = True
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def complaint(grammar: Grammar) -> str:
    """What is wrong with a grammar; empty when nothing is."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer(cast("str", ByteVocabulary()), n_vocab=257, eos_token=[256], slices=[])
    try:
        text = compiler_text(grammar)
    except ValueError as error:
        return refusal(str(error))
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=compiler_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        return refusal(matcher.get_error())
    if grammar.kind.startswith("json") and matcher.is_accepting():
        return "the schema refers to nothing but itself, so the empty text would be valid."
    return ""


def _serve(seconds: float) -> None:
    _bound_memory()
    import_module("llguidance")  # once, for all forks
    # Where there are no forks, what ends one compiling ends the process.
    allowance, try_out = PriorityAllowance(), _try_apart if HAS_FORKS else _try_out
    say("ready")
    for line in sys.stdin:
        said = try_out(Grammar(*json.loads(line)), seconds, allowance)
        print(said or "null", flush=True)


def _try_out(grammar: Grammar, seconds: float, allowance: PriorityAllowance) -> str:
    """The complaint, as JSON; ends this process where compiling takes longer."""
    with _bounded_time(seconds):
        said = run_aside(lambda: complaint(grammar), stack_bytes=_STACK_BYTES, allowance=allowance)
    return json.dumps(said)


def _try_apart(grammar: Grammar, seconds: float, allowance: PriorityAllowance) -> str:
    """The same in a fork; empty where that came to no end."""
    reads, writes = os.pipe()
    began = monotonic()
    pid = os.fork()  # there is no other thread here
    if pid == 0:
        try:
            os.write(writes, _try_out(grammar, seconds, allowance).encode())
        finally:
            os._exit(0)
    os.close(writes)
    said = b""
    if select.select([reads], [], [], _FORK_SECONDS)[0]:
        said = os.read(reads, _MOST_ANSWER)
    os.close(reads)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    allowance.use(min(allowance.refill(), monotonic() - began))
    return said.decode()


@contextmanager
def _bounded_time(seconds: float) -> Generator[None]:
    """Who computes for longer is ended by a signal that nobody handles, wherever it is."""
    if not _HAS_TIMERS:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:
        return  # where there are no such bounds
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
