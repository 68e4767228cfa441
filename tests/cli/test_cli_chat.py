"""`cutaway chat` on a tiny random model: on a pipe, and on a terminal of its own."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny
from cutaway.cli.repl import line_source
from program import Cutaway, command, environment, spawn

FLAGS = ["--seed", "1", "--max-tokens", "6", "--ignore-eos"]


# On a pipe.


def test_each_line_of_a_pipe_is_answered_and_the_end_ends(
    cutaway: Cutaway, tiny_model: str
) -> None:
    ended = cutaway("chat", tiny_model, *FLAGS, stdin="one\n\ntwo\n")
    assert ended.code == 0
    assert ended.err.count("[6 tokens | ") == 2
    answers = [cutaway("chat", tiny_model, *FLAGS, stdin="one\n").out]
    assert ended.out.startswith(answers[0])
    assert len(ended.out) > len(answers[0])


def test_the_history_is_sent_and_found_in_the_cache(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("chat", tiny_model, *FLAGS, "--json", stdin="one\ntwo\n")
    first, second = (json.loads(line) for line in ended.out.splitlines())
    prompt = bytes(second["prompt_token_ids"]).decode()
    assert prompt == f"user: one\nassistant: {first['text']}\nuser: two\nassistant:"
    assert second["usage"]["cached_tokens"] >= 16


def test_commands_on_a_pipe_speak_on_stderr(cutaway: Cutaway, tiny_model: str) -> None:
    stdin = "/set seed 3\n/system Rhyme.\n/show\n/bye\nnever read\n"
    ended = cutaway("chat", tiny_model, stdin=stdin)
    assert (ended.code, ended.out) == (0, "")
    assert "seed = 3" in ended.err and "system: Rhyme." in ended.err
    assert (
        "random:tiny (not stated), float32, products of packed weights in 8 bits, on cpu."
        in ended.err
    )
    assert "never" not in ended.err


def test_an_error_on_a_pipe_ends_with_its_exit_code(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("chat", tiny_model, stdin="/nothing\nhello\n")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: there is no command /nothing; /help lists the commands.\n"


def test_a_full_context_is_told_with_its_numbers(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("chat", tiny_model, stdin="x" * 300)
    assert ended.code == 2
    assert "the prompt has 317 tokens and the longest sequence is 256" in ended.err
    assert ended.err.endswith("/clear forgets the messages.\n")
    ended = cutaway("chat", tiny_model, "--ignore-eos", stdin="x" * 200)
    assert ended.code == 0
    assert "the context is full: 256 of 256 tokens. /clear forgets the messages." in ended.err


def test_an_answer_that_repeats_itself_ends_and_a_line_says_so(
    cutaway: Cutaway, tiny_model: str
) -> None:
    greedy, more = ("--temperature", "0", "--frequency-penalty", "-2"), ("--max-tokens", "180")
    loop = [*greedy, *more, "--ignore-eos"]
    ended = cutaway("chat", tiny_model, *loop, stdin="one\n")
    assert "repeated itself]\nit repeated itself, so it was ended; --repetition" in ended.err
    off = cutaway("chat", tiny_model, *loop, "--repetition-detection", "off", stdin="one\n")
    assert "[180 tokens" in off.err and off.out.startswith(ended.out[:-1])
    told = cutaway("chat", tiny_model, stdin="/set\n/set repetition-detection 2,4,3\n").err
    assert "repetition_detection = 16,64,4" in told and "repetition_detection = 2,4,3" in told
    form = cutaway("chat", tiny_model, "--regex", "a*", stdin="/set\n").err
    assert "repetition_detection = None" in form, "a list of like numbers may be what was asked for"
    wrong = cutaway("chat", tiny_model, "--repetition-detection", "4", stdin="one\n")
    assert wrong.code == 2 and "repetition_detection is" in wrong.err and "16,64,4" in wrong.err


def test_memory_and_system_reach_the_prompt(cutaway: Cutaway, tiny_model: str) -> None:
    common = ["chat", tiny_model, *FLAGS, "--json", "--system", "Be brief.", "--memory"]
    ended = cutaway(*common, stdin="/memory add my cat is Ada\nhi\n")
    prompt = bytes(ended.json["prompt_token_ids"]).decode()
    assert prompt == (
        "system: Be brief.\n\nFacts that the user asked to be remembered:\n- my cat is Ada\n"
        "user: hi\nassistant:"
    )
    assert "[outside the model] stored fact 1" in ended.err


def test_the_model_may_be_named_once(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("chat", tiny_model, "--model", tiny_model)
    assert ended.code == 2
    assert "the model is named twice" in ended.err


def test_a_model_without_a_template_says_so_before_the_first_message(
    cutaway: Cutaway, tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    ended = cutaway("chat", f"random:{tmp_path}", stdin="")
    assert ended.code == 2
    assert "has no chat template" in ended.err
    assert "`cutaway complete`" in ended.err


def test_the_installed_program_answers_a_pipe_and_ends(tiny_model: str) -> None:
    ended = spawn("chat", tiny_model, *FLAGS, stdin="What is gravity?\n")
    assert ended.code == 0
    assert ended.out.endswith("\n") and len(ended.out) > 1
    assert "loading" not in ended.err and "\x1b" not in ended.err + ended.out


# On a terminal.

PATIENCE = 120  # seconds without a character; who waits longer waits for what never comes
needs_pty = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


class Terminal:
    """A person at a terminal: types, and waits for what is shown."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """Everything shown until a text comes; what is shown after it stays for the next wait."""
        while text not in self.seen:
            is_told = bool(select.select([self._descriptor], [], [], PATIENCE)[0])
            assert is_told, f"nothing came for {PATIENCE} s; {text!r} is not in {self.seen}"
            try:
                new = os.read(self._descriptor, 4096)
            except OSError:  # Linux says so when the other end is closed
                new = b""
            assert new, f"it ended without {text!r}: {self.seen}"
            self.seen += new.decode(errors="replace")
        before, found, self.seen = self.seen.partition(text)
        return before + found

    def wait_for_text(self) -> None:
        """Wait until anything but a line end is shown."""
        while not self.seen.strip():
            self.seen += os.read(self._descriptor, 4096).decode(errors="replace")


@contextmanager
def terminal(*arguments: str, **more: str) -> Generator[Terminal]:
    import pty

    outer, inner = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment(**{"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **more}),
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(inner)
    try:
        yield Terminal(process, outer)
    finally:
        os.close(outer)
        process.kill()
        process.wait()


def _take_terminal() -> None:
    """Make stdin the controlling terminal, so that Ctrl-C typed there becomes a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """An environment in which prompt-toolkit cannot be imported."""
    (tmp_path / "prompt_toolkit.py").write_text("raise ImportError", encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])}


@needs_pty
@pytest.mark.parametrize("editor", ["prompt-toolkit", "plain"])
def test_a_terminal_session_from_greeting_to_end(
    tiny_model: str, plain: dict[str, str], editor: str
) -> None:
    with terminal("chat", tiny_model, *FLAGS, **(plain if editor == "plain" else {})) as screen:
        screen.wait_for(
            "random:tiny (not stated), float32, products of packed weights in 8 bits, on cpu. "
            "/help lists the commands."
        )
        screen.wait_for(">>>")
        screen.type("hello\r")
        assert "[6 tokens | " in screen.wait_for("0 cached")
        screen.wait_for(">>>")
        screen.type("half a line\x03")  # Ctrl-C clears it
        screen.wait_for(">>>")
        screen.type("/show\r")
        assert "messages: 2" in screen.wait_for("memory: off")
        screen.wait_for(">>>")
        screen.type("/nothing\r")
        screen.wait_for("error: there is no command /nothing")
        screen.wait_for(">>>")
        screen.type("\x04")  # Ctrl-D ends
        assert screen.process.wait(300) == 0


@needs_pty
def test_an_interrupt_stops_the_answer_and_keeps_what_came(
    tmp_path: Path, tiny_folder: Path, plain: dict[str, str]
) -> None:
    folder = tmp_path / "endless"
    shutil.copytree(tiny_folder, folder)
    values = tiny.config(max_position_embeddings=100_000)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    flags = ["--ignore-eos", "--max-tokens", "90000", "--seed", "1"]
    with terminal("chat", f"random:{folder}", *flags, **plain) as screen:
        screen.wait_for(">>> ")
        screen.type("go\r")
        screen.wait_for("go")
        screen.wait_for_text()
        screen.type("\x03")
        assert "stopped]" in screen.wait_for(">>> ")
        screen.type("/show\r")
        assert "messages: 2" in screen.wait_for(">>> ")
        screen.type("\x04")
        assert screen.process.wait(300) == 0


@needs_pty
def test_a_second_interrupt_ends_the_program(
    tiny_model: str, plain: dict[str, str], tmp_path: Path
) -> None:
    # A step that lasts for ever cannot be waited for.
    (tmp_path / "sitecustomize.py").write_text(ENDLESS_STEP, encoding="utf-8")
    with terminal("chat", tiny_model, **plain) as screen:
        screen.wait_for(">>> ")
        screen.type("go\r")
        screen.wait_for("in a step")
        screen.type("\x03")
        screen.wait_for("still in it")
        screen.type("\x03")
        assert screen.process.wait(300) == 130


ENDLESS_STEP = """
import time
from cutaway.cli.session.session import Session

def stream(self, request, *, is_stopped):
    print("in a step", flush=True)
    while not is_stopped():
        time.sleep(0.01)
    print("still in it", flush=True)
    while True:
        time.sleep(0.01)
    yield

Session.stream = stream
"""


@needs_pty
def test_no_signal_is_lost_between_prompt_and_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    # input() alone waits for ever where a signal comes just before its read() begins.
    import pty

    def give_up(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    outer, inner = pty.openpty()
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        with open(inner, encoding="utf-8", closefd=False) as typed:
            monkeypatch.setattr(sys, "stdin", typed)
            wait = line_source.line_waiter()
            for delay in range(1, 200):
                with pytest.raises(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, delay * 1e-6)
                    wait()
            os.write(outer, b"a line\n")
            wait()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGALRM, before)
        os.close(outer)
        os.close(inner)
