"""docs/life-of-a-request.md tells the truth: its functions exist and are called in its order."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tiny
from cutaway import LLM, SamplingParams
from cutaway.kernels import capture

PAGE = Path(__file__).parents[2] / "docs" / "life-of-a-request.md"
STEP = re.compile(r"^\d+\. `([\w/]+)\.py` `([\w.]+)`", re.MULTILINE)


def steps() -> list[tuple[str, str]]:
    found = STEP.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 20, "the page's steps are no longer recognised"
    return [(path.replace("/", "."), name) for path, name in found]


def test_every_step_names_a_function_that_exists() -> None:
    for module, name in steps():
        target: Any = importlib.import_module(f"cutaway.{module}")
        for part in name.split("."):
            target = getattr(target, part)
        assert callable(target), f"{module} {name}"


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_request_calls_the_steps_in_the_page_s_order(tmp_path: Path, dtype: str) -> None:
    """In auto a CPU records the model's steps while the engine is made, in the page's order too."""
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(vocab_size=300, eos_token_id=256)))
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    made: list[LLM] = []
    while_made = calls_of(
        lambda: made.append(LLM(f"random:{tmp_path}/config.json", dtype=dtype, cache_tokens=1024))
    )
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0.0, max_tokens=2)
    called = calls_of(lambda: list(made[0].stream_chat(messages, params)))
    expected = [f"{module} {name}" for module, name in steps()]
    if dtype == "auto" and capture.is_available():
        inside = [name for name in expected if name.startswith("blocks.")]
        assert_in_order(inside, while_made)
        assert not set(inside) & set(called), "what is recorded is replayed"
        expected = [name for name in expected if name not in inside]
    assert_in_order(expected, called)


def calls_of(work: Callable[[], object]) -> list[str]:
    """Modules and qualified names of our functions, as they are called."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("cutaway."):
                name = frame.f_code.co_qualname.removesuffix(".__init__")
                called.append(f"{module.removeprefix('cutaway.')} {name}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    # A dataclass's generated __init__ has the class's module in its globals, but a qualified
    # name of its own: what counts as the call is its __post_init__.
    return [name.replace("Request.__post_init__", "Request") for name in called]


def assert_in_order(expected: list[str], called: list[str]) -> None:
    assert set(expected) <= set(called), f"never called: {set(expected) - set(called)}"
    firsts = [called.index(name) for name in expected]
    assert firsts == sorted(firsts), "the first calls come in another order than the page says"
