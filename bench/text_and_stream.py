"""What the first and the last stage cost: rendering, hostile templates, tokens to text.

Times are CPU seconds of this process, the least of the rounds, so that a busy machine disturbs
them little. Templates are those of tests/text.

    python bench/text_and_stream.py --rounds 5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "text")]

from test_text_hostile import BOUNDED, REFUSED, TALK  # noqa: E402
from text_templates import STYLES  # noqa: E402
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

from cutaway.core.errors import TemplateError  # noqa: E402
from cutaway.core.request import SamplingParams  # noqa: E402
from cutaway.stream.text import TextStream  # noqa: E402
from cutaway.text.chat_messages import from_dicts  # noqa: E402
from cutaway.text.template import MAX_LEXEMES, ChatTemplate  # noqa: E402

NAMES = ("chatml", "llama 3", "qwen 2 with tools", "qwen 3 with reasoning")
TOKENS = [" the", " fox", " jumps", ".", "\n"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    print("| template | messages | ours, us | transformers, us |\n|---|---|---|---|")
    for name in NAMES:
        for turns in (1, 100):
            print_rendering(name, turns, rounds)
    print_hostile()
    print("\n| stop strings | us per token |\n|---|---|")
    for stops in ((), ("\n\nUser:",), tuple(f"stop {i}" for i in range(16))):
        print(f"| {len(stops)} | {stream_seconds(stops, rounds) * 1e6:.1f} |")
    return 0


def print_rendering(name: str, turns: int, rounds: int) -> None:
    style = STYLES[name]
    dicts = [
        {"role": "user", "content": "What is gravity?"},
        {"role": "assistant", "content": "A fundamental force. " * 20},
        {"role": "user", "content": "How do I bake chocolate chip cookies?"},
    ] * turns
    messages = from_dicts(dicts)
    template = ChatTemplate(style.source, control_strings=style.all_controls)
    ours = least(lambda: template.render(messages), rounds)
    theirs = least(lambda: render_jinja_template([dicts], chat_template=style.source), rounds)
    print(f"| {name} | {len(dicts)} | {ours * 1e6:.0f} | {theirs * 1e6:.0f} |")


def print_hostile() -> None:
    compiling, rendering = 0.0, 0.0
    sources = [*BOUNDED, *REFUSED, "{{ x }}" * (MAX_LEXEMES // 5 - 1)]
    for source in sources:
        began = time.process_time()
        try:
            template = ChatTemplate(source)
            compiling = max(compiling, time.process_time() - began)
            began = time.process_time()
            template.render(TALK)
        except TemplateError:
            pass
        rendering = max(rendering, time.process_time() - began)
    print(
        f"\n{len(sources)} hostile templates: the slowest took {compiling:.2f} s to compile "
        f"and {rendering:.2f} s to render or refuse"
    )


def stream_seconds(stops: tuple[str, ...], rounds: int) -> float:
    stream = TextStream(SamplingParams(stop=stops), lambda token_id: TOKENS[token_id].encode())

    def push() -> None:
        for index in range(1000):
            stream.push(index % len(TOKENS))

    return least(push, rounds) / 1000


def least(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of one call, after a first that is not counted."""
    work()
    seconds: list[float] = []
    for _ in range(rounds):
        count = 0
        began = time.process_time()
        while time.process_time() - began < 0.05:
            work()
            count += 1
        seconds.append((time.process_time() - began) / count)
    return min(seconds)


if __name__ == "__main__":
    raise SystemExit(main())
