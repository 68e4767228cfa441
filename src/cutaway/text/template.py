"""A model's chat template: messages in, prompt out.

String for string what transformers renders, under a budget of work, and with control tokens that
only the template can write. Knows no vocabulary and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

import jinja2
from jinja2 import Template, TemplateSyntaxError

from cutaway.core.errors import RequestError, TemplateError
from cutaway.core.limits import inside, quote, shorten
from cutaway.text.chat_messages import ROLES, Json, Message, plain, to_dicts
from cutaway.text.kinds import is_row, is_table
from cutaway.text.meter import MAX_TEXT, BudgetError, Meter, Rendering, rest_longer
from cutaway.text.prompt import Prompt, cut_rendered
from cutaway.text.sandbox import RefusalError, Sandbox
from cutaway.text.written import (
    ABSENT,
    concat,
    generated_runs,
    mark_written,
    message_extents,
    of_message,
)

# Far above what is needed: Qwen3's template has 4,116 characters and 991 words of Jinja, blanks
# included. Compiling as many words as are allowed takes about a second (docs/text.md).
MAX_SOURCE = 2**20
MAX_LEXEMES = 25_000
MAX_CONTROL = 256  # characters of a control string; Llama 3's longest has 30
MAX_WORDS = 500  # characters of a template's own message that are passed on

_OWN_VARIABLES = frozenset(("messages", "tools", "add_generation_prompt"))
_SWITCHES = frozenset(("enable_thinking", "thinking"))  # of reasoning, in one template or another

Sink = Callable[[str, Prompt], None]


@dataclass(frozen=True)
class Spoken:
    """A rendered conversation, and which of its characters are the assistant's to write.

    generated: start and end of each stretch in generation blocks, where the template has such.
    extents: for each of the assistant's messages, by its index, where its first character is and
        after its last; what the template wrote in between belongs to it.
    """

    prompt: Prompt
    generated: tuple[tuple[int, int], ...]
    extents: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """What a template is to render: the messages as it reads them, and what it is told beside."""

    messages: Sequence[dict[str, Json]]
    tools: Sequence[Mapping[str, object]] | None
    extras: Mapping[str, object]
    add_generation_prompt: bool
    in_parts: bool


class Elsewhere(Protocol):
    """Where long renderings go on, so that they hold up no thread here."""

    def allow(self) -> AbstractContextManager[Callable[[int], None]]:
        """What a rendering calls where it rests; it may raise LongRenderingError."""
        ...

    def render(self, names: Mapping[str, object], asked: Asked) -> str | None:
        """The marked text, or None where it has to be rendered here after all."""
        ...


class LongRenderingError(BaseException):
    """A rendering should go on elsewhere; no handler in a template may take this for a fault."""


class ChatTemplate:
    """One compiled template. Renderings share nothing, so threads may share it.

    control_strings: texts of the control tokens that the tokenizer knows.
    special_tokens: other names that a template may read, for instance pad_token.
    now: the clock of strftime_now.
    sink: told ("text.prompt", prompt) for every rendering; it reads only.
    elsewhere: where long renderings go on; its clock is the system's.

    Raises: TemplateError when there is no template, or Jinja cannot compile it.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        control_strings: frozenset[str] = frozenset(),
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        sink: Sink | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._given: dict[str, object] = {
            "source": source, "bos_token": bos_token, "eos_token": eos_token,
            "control_strings": sorted(control_strings), "special_tokens": special_tokens,
        }  # fmt: skip
        self._elsewhere = elsewhere
        names = {"bos_token": bos_token, "eos_token": eos_token, **(special_tokens or {})}
        self._special_tokens = {name: mark_written(text) for name, text in names.items() if text}
        self._control_strings = _checked_controls(control_strings)
        self._sink = sink
        self._source = _checked(source)
        self._template, read = _compile(self._source, Sandbox(now=now))
        self.variables = read - _OWN_VARIABLES - names.keys()
        # What it leaves out of histories of each shape, as text/reach.py found.
        self.known_shapes: dict[object, tuple[int, str] | None] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        extras: Mapping[str, object] | None = None,
        in_parts: bool = False,
    ) -> Prompt:
        """The prompt for a conversation.

        extras are further variables, for instance enable_thinking; the template must read them.
        in_parts gives texts as lists of parts, as templates of models that see may want them.

        Raises: TemplateError with the template's own words when it refuses the messages, or with
        what is wrong with it; RequestError when tools or extras are not plain data or not read.
        """
        asked = Asked(to_dicts(messages), tools, extras or {}, add_generation_prompt, in_parts)
        prompt = cut_rendered(self._render(asked), self._control_strings)
        if self._sink is not None:
            self._sink("text.prompt", prompt)
        return prompt

    def _render(self, asked: Asked) -> str:
        """The marked text, from elsewhere where it takes long."""
        if self._elsewhere is None:
            return self.render_marked(asked)
        try:
            with self._elsewhere.allow() as rest:
                return self.render_marked(asked, rest=rest)
        except LongRenderingError:
            text = self._elsewhere.render(self._given, asked)
        return self.render_marked(asked) if text is None else text

    def render_marked(self, asked: Asked, *, rest: Callable[[int], None] = rest_longer) -> str:
        """The text, whose characters know whether the template wrote them. rest: as Meter's.

        Raises: as render.
        """
        variables = self._variables(asked.messages, asked.tools, asked.extras)
        if asked.in_parts:
            variables["messages"] = [*map(_in_parts, variables["messages"])]
        variables["add_generation_prompt"] = asked.add_generation_prompt
        return _run(self._template, variables, rest)

    def render_spoken(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> Spoken:
        """A whole conversation, with what in it is the assistant's, for training.

        Who wrote a character is known from where it came from; nothing is searched for.

        Raises: as render.
        """
        marked = [
            _of_message(fields, index) if message.role == "assistant" else fields
            for index, message in enumerate(messages)
            for fields in to_dicts([message])
        ]
        variables = self._variables(marked, tools, extras or {})
        variables["add_generation_prompt"] = False
        text = _run(self._template, variables, rest_longer)
        return Spoken(
            prompt=cut_rendered(text, self._control_strings),
            generated=tuple(generated_runs(text)),
            extents=message_extents(text),
        )

    def _variables(
        self,
        messages: Sequence[dict[str, Json]],
        tools: Sequence[Mapping[str, object]] | None,
        extras: Mapping[str, object],
    ) -> dict[str, Any]:
        # The rest of what is None stays defined, as transformers has it.
        return {
            "documents": None,
            **self._special_tokens,
            **self._checked_extras(extras),
            "messages": [_for_template(fields) for fields in messages],
            "tools": None if tools is None else plain(tools, "tools"),
        }

    def _checked_extras(self, extras: Mapping[str, object]) -> dict[str, Json]:
        told: dict[str, Json] = {}
        for name, value in extras.items():
            if name not in self.variables:
                if value is False and name in _SWITCHES and "<think>" not in self._source:
                    continue  # it asks a model that does not reason not to reason
                param = inside("chat_template_kwargs", name)
                listed = ", ".join(sorted(self.variables)) or "no more than the messages"
                raise RequestError(
                    f"{param} is not read by this model's chat template; it reads {listed}.",
                    param=param,
                )
            told[name] = plain(value, inside("chat_template_kwargs", name))
        return told


def choose_source(value: object, *, has_tools: bool = False) -> str:
    """The template among what a tokenizer_config.json may hold: one, or a list of named ones.

    With tools the one named tool_use is taken where there is one, else the one named default.

    Raises: TemplateError when there is none; nothing is guessed.
    """
    if isinstance(value, str) and value:
        return value
    named: dict[object, object] = {}
    for entry in value if is_row(value) else ():
        if is_table(entry):
            named[entry.get("name")] = entry.get("template")
    for name in ("tool_use", "default") if has_tools else ("default",):
        source = named.get(name)
        if isinstance(source, str):
            return source
    if not value:
        raise TemplateError(
            "this model has no chat template; send a prompt without messages, or give a template."
        )
    raise TemplateError(
        f"chat_template is {quote(value)}; it must be a string, or a list of named templates "
        "with one called default."
    )


def _checked(source: str | None) -> str:
    source = choose_source(source)
    if len(source) > MAX_SOURCE:
        raise TemplateError(
            f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are allowed."
        )
    return source


def _checked_controls(control_strings: frozenset[str]) -> frozenset[str]:
    longest = max(control_strings, key=len, default="")
    if len(longest) > MAX_CONTROL:
        raise TemplateError(
            f"the vocabulary has a control token of {len(longest)} characters, "
            f"{quote(longest)}; at most {MAX_CONTROL} are allowed."
        )
    return control_strings - {""}


def _compile(source: str, sandbox: Sandbox) -> tuple[Template, frozenset[str]]:
    """The template, and the names of the variables that it reads."""
    try:
        for count, _ in enumerate(sandbox.lex(source)):
            if count == MAX_LEXEMES:
                raise BudgetError(f"it has more than {MAX_LEXEMES} words")
        template = sandbox.from_string(source)
        return template, frozenset(sandbox.names_read - sandbox.globals.keys())
    except Exception as fault:  # untrusted code: whatever it trips over is its own fault
        line = fault.lineno if isinstance(fault, TemplateSyntaxError) else None
        raise _template_error(fault, line) from fault


def _run(template: Template, variables: dict[str, object], rest: Callable[[int], None]) -> str:
    meter = Meter(rest=rest)
    meter.allow(variables.values())
    context = template.new_context(variables)
    assert isinstance(context, Rendering), "the sandbox makes the context"
    context.meter = meter
    pieces: list[str] = []
    chars = 0
    try:
        for piece in template.root_render_func(context):
            chars += len(piece)
            if chars > MAX_TEXT:
                raise BudgetError(f"it writes more than {MAX_TEXT} characters")
            pieces.append(piece)
    except RefusalError as refusal:
        raise TemplateError(shorten(str(refusal), MAX_WORDS)) from None
    except Exception as fault:  # untrusted code: whatever it trips over is its own fault
        raise _template_error(fault, _line(template, fault.__traceback__)) from fault
    return concat(pieces)


def _of_message(fields: dict[str, Json], index: int) -> dict[str, Json]:
    """A message whose words remember that they are its own; names of fields stay plain."""

    def marked(value: Json) -> Json:
        if isinstance(value, str):
            return of_message(value, index)
        if isinstance(value, list):
            return [marked(each) for each in value]
        if isinstance(value, dict):
            return {key: marked(each) for key, each in value.items()}
        return value

    plain_fields = {"role", "name"}
    return {k: v if k in plain_fields else marked(v) for k, v in fields.items()}


def _for_template(fields: dict[str, Json]) -> dict[str, object]:
    """A message with its role as the template's own word, and with content even where it has none.

    Beside calls an empty text is none: clients send either, and templates look for one of them.
    """
    role = fields["role"]
    content = fields.get("content", ABSENT)
    return {
        **fields,
        "role": mark_written(role) if isinstance(role, str) and role in ROLES else role,
        "content": ABSENT if content == "" and "tool_calls" in fields else content,
    }


def _in_parts(fields: dict[str, object]) -> dict[str, object]:
    content = fields["content"]
    return {**fields, "content": [{"type": "text", "text": content}] if content else []}


def _line(template: Template, traceback: TracebackType | None) -> int | None:
    """The template's line in which a fault came up."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == template.filename:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _template_error(fault: Exception, line: int | None) -> TemplateError:
    where = "" if line is None else f", line {line}"
    said = fault.message if isinstance(fault, jinja2.TemplateError) else str(fault)
    words = (said or type(fault).__name__).rstrip(".")
    words = f"the chat template is at fault{where}: {words}."
    return TemplateError(shorten(words, MAX_WORDS))
