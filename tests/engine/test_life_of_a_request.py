"""docs/life-of-a-request.md tells the truth: its functions exist and are called in its order."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import tiny
from cutaway import LLM, SamplingParams

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


def test_a_request_calls_the_steps_in_the_page_s_order(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(vocab_size=300, eos_token_id=256)))
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    llm = LLM(f"random:{tmp_path}/config.json", dtype="float32", cache_tokens=1024)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("cutaway."):
                name = frame.f_code.co_qualname.removesuffix(".__init__")
                called.append(f"{module.removeprefix('cutaway.')} {name}")

    messages = [{"role": "user", "content": "hi"}]
    sys.setprofile(note)
    try:
        list(llm.stream_chat(messages, SamplingParams(temperature=0.0, max_tokens=2)))
    finally:
        sys.setprofile(None)
    # A dataclass's generated __init__ has the class's module in its globals, but a qualified
    # name of its own: what counts as the call is its __post_init__.
    called = [name.replace("Request.__post_init__", "Request") for name in called]
    expected = [f"{module} {name}" for module, name in steps()]
    assert set(expected) <= set(called), f"never called: {set(expected) - set(called)}"
    firsts = [called.index(name) for name in expected]
    assert firsts == sorted(firsts), "the first calls come in another order than the page says"
