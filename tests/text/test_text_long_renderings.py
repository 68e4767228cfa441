"""Long renderings go on in a process of their own and come to the same text, or refusal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from cutaway.core.errors import TemplateError
from cutaway.host.aside import PriorityAllowance
from cutaway.text import long_renderings
from cutaway.text.chat_messages import from_dicts
from cutaway.text.long_renderings import LongRenderings
from cutaway.text.meter import BudgetError
from cutaway.text.prompt import Prompt
from cutaway.text.template import ChatTemplate, Elsewhere

TALK = from_dicts(
    [{"role": "user", "content": "<s>hi \u00fc"}, {"role": "assistant", "content": "x"}]
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
LONG = """{{ bos_token }}{% for a in range(n) %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{{ tools | tojson }}<s>{% endfor %}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"""
ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
CONTROLS = frozenset({"<s>", "<go>"})


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[LongRenderings]:
    """What goes on elsewhere from its first rest on, however busy the machine is."""
    monkeypatch.setattr(long_renderings, "LEAST_SHARE", 0)
    made = LongRenderings(PriorityAllowance(0))
    yield made
    made.close()


def compiled(source: str, elsewhere: Elsewhere | None) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", control_strings=CONTROLS, elsewhere=elsewhere)


def write_long(template: ChatTemplate, *, in_parts: bool = False) -> Prompt:
    return template.render(TALK, tools=TOOLS, extras={"n": 300}, in_parts=in_parts)


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_text_and_who_wrote_it_are_the_same_as_here(
    apart: LongRenderings, in_parts: bool
) -> None:
    here = write_long(compiled(LONG, None), in_parts=in_parts)
    there = write_long(compiled(LONG, apart), in_parts=in_parts)
    assert apart._free[0].process is not None, "it was long enough to go on elsewhere"
    assert there == here
    assert {each.is_control for each in here.segments} == {True, False}


def test_what_has_no_end_is_refused_in_the_same_words(apart: LongRenderings) -> None:
    said: list[str] = []
    for elsewhere in (None, apart):
        with pytest.raises(TemplateError) as caught:
            compiled(ENDLESS, elsewhere).render(TALK)
        assert isinstance(caught.value.__cause__, BudgetError)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_usual_conversation_and_a_long_one_now_and_then_stay_here() -> None:
    made = LongRenderings(PriorityAllowance(30))
    write_long(compiled(LONG, made))
    assert not made._free
    none = LongRenderings(PriorityAllowance(0))
    compiled(LONG, none).render(TALK, extras={"n": 1}, tools=TOOLS)
    assert not none._free


@pytest.mark.skipif(sys.platform != "linux", reason="a process cannot be stopped there")
def test_a_process_that_gets_no_core_or_ends_is_not_waited_for(
    apart: LongRenderings, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = compiled(LONG, apart)
    right = write_long(template)
    for number, share in ((signal.SIGSTOP, 0.02), (signal.SIGKILL, 0)):
        first = apart._free[0].process
        assert first is not None
        os.kill(first.pid, number)
        with monkeypatch.context() as patch:
            patch.setattr(long_renderings, "STARVED_SECONDS", 0.05)
            patch.setattr(long_renderings, "LEAST_SHARE", share)
            assert write_long(template) == right
        assert first.poll() is not None
        assert write_long(template) == right
        assert apart._free[0].process not in (None, first), "it is replaced"
