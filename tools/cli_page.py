"""Writes the generated parts of the pages in docs/ from the program itself.

`--check` compares and writes nothing. It knows no setting: all names, ranges and help are the
program's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import typer
from python_api import reference

from cutaway.cli.commands import application
from cutaway.cli.help_examples import EXAMPLES
from cutaway.cli.settings.setting_keys import CHAT, KEYS
from cutaway.cli.terminal.exits import EXIT_CODES
from cutaway.server import constraints, reasoning, tools
from cutaway.server.anthropic.messages import CountBody, MessagesBody
from cutaway.server.anthropic.messages_fields import OBJECTS as MESSAGES_OBJECTS
from cutaway.server.field_types import Body, Limited, Refused, Unused
from cutaway.server.openai.chat import ChatBody
from cutaway.server.openai.completions import CompletionBody
from cutaway.server.openai.responses import ResponsesBody
from cutaway.server.openai.responses_fields import OBJECTS as RESPONSES_OBJECTS
from cutaway.server.routes import describe_route
from cutaway.text import chat_fields
from cutaway.text.object_fields import ObjectFields
from cutaway.train.distill import DistillSettings
from cutaway.train.dpo import DpoSettings
from cutaway.train.grpo import GrpoSettings
from cutaway.train.lesson.lesson import LessonSettings
from cutaway.train.ppo import PpoSettings
from cutaway.train.pretrain import PretrainSettings
from cutaway.train.reward import RewardSettings
from cutaway.train.sft import SftSettings
from cutaway.train.speculator import SpeculatorSettings
from cutaway.train.stage import StageSettings
from cutaway.train.stage_config import plain
from cutaway.train.vocabulary import VocabularySettings

STAGES = {
    "bpe": VocabularySettings,
    "pretrain": PretrainSettings,
    "sft": SftSettings,
    "reward": RewardSettings,
    "dpo": DpoSettings,
    "ppo": PpoSettings,
    "grpo": GrpoSettings,
    "distill": DistillSettings,
    "speculator": SpeculatorSettings,
    "lesson": LessonSettings,
}
OWN = ("bpe", "lesson")  # that have nothing of the others
ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- {}: written by `python tools/cli_page.py` -->\n"
END = "<!-- end of {} -->\n"


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit status."""
    is_stale = False
    for name, parts in PAGES.items():
        page = ROOT / "docs" / name
        before = page.read_text(encoding="utf-8")
        after = before
        for part, make in parts.items():
            after = with_part(after, part, lines=list(make()))
        if before != after and arguments == ["--check"]:
            print(f"docs/{name} is not what the program says; run `python tools/cli_page.py`.")
            is_stale = True
        elif before != after:
            page.write_text(after, encoding="utf-8")
    return int(is_stale)


def with_part(page: str, part: str, *, lines: list[str]) -> str:
    """The page with what stands between the two marks of a part replaced."""
    head, rest = page.split(MARK.format(part))
    _, tail = rest.split(END.format(part))
    made = "".join(f"{line}\n" for line in lines)
    return "".join([head, MARK.format(part), made, END.format(part), tail])


def exit_codes() -> Iterator[str]:
    """The table of exit codes."""
    yield from ("| code | means |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)


def commands() -> Iterator[str]:
    """A section for each command: usage, what it does, its own options."""
    root: Any = typer.main.get_command(application())
    for path, command in _commands("cutaway", root):
        yield from ("", f"## {path}", "")
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option"]
        words = " ".join([path, "[OPTIONS]", *map(_argument, arguments)])
        yield from (f"    {words}", "")
        yield from (command.help or "").strip().splitlines()
        examples = EXAMPLES.get(path.removeprefix("cutaway").strip(), ())
        yield from ("", *(f"    {example}" for example in examples)) if examples else ()
        shared = {*_settings(), "help_all"}
        own = [each for each in options if each.name not in shared and each.help]
        if own or arguments:
            yield from ("", "| | |", "|---|---|")
        yield from (f"| `{_argument(each)}` | {_cell(each.help)} |" for each in arguments)
        yield from (f"| {_spelled(each)} | {_cell(each.help)} |" for each in own)
        if any(each.name in _settings() for each in options):
            names = _shared([each.name for each in options])
            yield from ("", f"And from [configuration.md](configuration.md#settings): {names}.")


def settings() -> Iterator[str]:
    """One table of all settings."""
    yield from ("| flag | what | default |", "|---|---|---|")
    for key in KEYS:
        default = "" if key.default in (None, ()) else f"`{str(key.default).lower()}`"
        what = key.help.split("; default")[0] if default else key.help
        yield f"| `{key.flag}` | {_cell(what)} | {default} |"


def stage_settings() -> Iterator[str]:
    """Settings that all stages of training have, and those of each stage beside them."""
    shared = {each.name: each for each in fields(StageSettings)}
    yield from ("Of every stage but `bpe` and `lesson`:", "")
    yield from _of_stage(shared.values())
    for name, kind in STAGES.items():
        others = {} if name in OWN else shared
        own = [each for each in fields(kind) if not _is_same(each, others.get(each.name))]
        yield from ("", f"Of `{name}`:" if name in OWN else f"Of `{name}`, where it differs:", "")
        yield from _of_stage(own)


def _of_stage(settings: Iterable[Field[Any]]) -> Iterator[str]:
    yield from ("| setting | what | default | may change |", "|---|---|---|---|")
    for each in settings:
        told = each.metadata
        allowed = _allowed(told["choices"], told["least"], told["most"])
        may_change = "" if told["changes_run"] else "yes"
        default = "it must be given"
        if each.default is not MISSING:
            default = "" if each.default is None else f"`{json.dumps(plain(each.default))}`"
        yield f"| `{each.name}` | {_cell(told['help'] + allowed)} | {default} | {may_change} |"


def _allowed(choices: tuple[str, ...], least: float | None, most: float | None) -> str:
    if choices:
        return "; " + ", ".join(choices)
    if least is None:
        return "" if most is None else f"; at most {most:g}"
    return f"; at least {least:g}" if most is None else f"; from {least:g} to {most:g}"


def _is_same(one: Field[Any], other: Field[Any] | None) -> bool:
    return other is not None and (one.default, one.metadata) == (other.default, other.metadata)


def request_fields() -> Iterator[str]:
    """Fields that have an effect, in the APIs that have them."""
    yield from ("| field | chat | completions | may be |", "|---|---|---|---|")
    for name in dict.fromkeys([*_ordered(ChatBody), *_ordered(CompletionBody)]):
        has = {body: _has_effect(body, name) for body in _BODIES}
        if any(has.values()):
            # Of two bodies the one that bounds a field tells more.
            body = max((each for each in _BODIES if has[each]), key=lambda b: _is_bounded(b, name))
            marks = ["yes" if each else "" for each in has.values()]
            yield f"| `{name}` | {marks[0]} | {marks[1]} | {_may_be(body, name)} |"


def other_fields() -> Iterator[str]:
    """Fields that are refused, and fields without effect."""
    yield from ("| field | what happens |", "|---|---|")
    names_of: dict[str, list[str]] = {}  # those of whom the same is said
    for name in dict.fromkeys([*ChatBody.model_fields, *CompletionBody.model_fields]):
        for body in _BODIES:
            if _marked(body, name, Refused):
                names = names_of.setdefault(_may_be(body, name), [])
                names += [] if name in names else [name]
    for told, names in names_of.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {told} |"
    yield f"| {_unused(ChatBody)} | taken, without effect |"


def responses_fields() -> Iterator[str]:
    """All fields of OpenAI's Responses."""
    yield from ("| field | may be |", "|---|---|")
    for name in _ordered(ResponsesBody):
        yield f"| `{name}` | {_may_be(ResponsesBody, name)} |"
    yield f"| {_unused(ResponsesBody)} | taken, without effect |"


def messages_fields() -> Iterator[str]:
    """All fields of Anthropic's Messages, and which of them count_tokens reads."""
    yield from ("| field | `count_tokens` | may be |", "|---|---|---|")
    for name in _ordered(MessagesBody):
        counts = "yes" if name in CountBody.model_fields else ""
        yield f"| `{name}` | {counts} | {_may_be(MessagesBody, name)} |"
    yield f"| {_unused(MessagesBody)} | | taken, without effect |"


def object_fields() -> Iterator[str]:
    """What objects inside a request may hold, API by API."""
    yield "| API | object | read | taken, without effect | refused |"
    yield "|---|---|---|---|---|"
    for api, objects in _OBJECTS.items():
        for each in objects:
            cells = [", ".join(f"`{name}`" for name in names) for names in _kinds_of(each)]
            yield f"| {api} | {each.kind} | {' | '.join(cells)} |"


def _kinds_of(each: ObjectFields) -> tuple[tuple[str, ...], ...]:
    return each.read, each.notes, tuple(each.refused)


def _ordered(body: type[Body]) -> list[str]:
    """Fields: what is needed, what is taken, what is refused."""

    def rank(name: str) -> tuple[bool, bool]:
        is_refused = _marked(body, name, Refused) is not None
        return (is_refused, not body.model_fields[name].is_required())

    named = (name for name in body.model_fields if not _marked(body, name, Unused))
    return sorted(named, key=rank)


def _unused(body: type[Body]) -> str:
    names = (name for name in body.model_fields if _marked(body, name, Unused))
    return ", ".join(f"`{name}`" for name in names)


def _has_effect(body: type[Body], name: str) -> bool:
    is_idle = _marked(body, name, Refused) or _marked(body, name, Unused)
    return name in body.model_fields and not is_idle


def _is_bounded(body: type[Body], name: str) -> bool:
    return _marked(body, name, Limited) is not None


def _may_be(body: type[Body], name: str) -> str:
    """What a field takes, or what becomes of it."""
    limited, refused = _marked(body, name, Limited), _marked(body, name, Refused)
    if refused is not None:
        taken = list(dict.fromkeys(json.dumps(each).removesuffix(".0") for each in refused.neutral))
        but = f" Taken when it is {' or '.join(taken)}." if taken else ""
        return f"refused. {refused.advice}{but}"
    needed = "; needed" if body.model_fields[name].is_required() else ""
    if limited is not None:
        return limited.describe() + needed
    content = describe_route(body)["openapi_extra"]["requestBody"]["content"]
    schema = content["application/json"]["schema"]["properties"][name]
    return _shape(schema) + needed


def _shape(schema: dict[str, Any]) -> str:
    """A JSON schema in words, as far as a table has room."""
    parts = [_one(each) for each in _alternatives(schema) if each.get("type") != "null"]
    words = " or ".join(dict.fromkeys(parts))
    # The description of what has properties tells what it is for, and no range.
    plain = [each for each in (schema, *schema.get("anyOf", ())) if "properties" not in each]
    told = next((each["description"] for each in plain if "description" in each), None)
    return f"{words}; {told}" if told else words


def _alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _alternatives(each)
    elif isinstance(schema.get("type"), list):
        yield from ({**schema, "type": each} for each in schema["type"])
    else:
        yield schema


def _one(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            most = f" of at most {schema['maxItems']}" if "maxItems" in schema else ""
            names = schema["items"].get("enum")
            return f"a list{most}" + (f" of {_one(schema['items'])}" if names else "")
        case "object":
            names = [f"`{name}`" for name in schema.get("properties", ())]
            return "an object" + (f" with {', '.join(names)}" if names else "")
        case kind:
            return _NOUNS[kind]


_NOUNS = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
}
_BODIES = (ChatBody, CompletionBody)
_OBJECTS = {
    "chat": (*chat_fields.OBJECTS, *tools.OBJECTS, *constraints.OBJECTS, *reasoning.OBJECTS),
    "Responses": RESPONSES_OBJECTS,
    "Messages": MESSAGES_OBJECTS,
}
PAGES = {
    "serve.md": {"request fields": request_fields, "other fields": other_fields},
    "apis.md": {
        "fields of Responses": responses_fields,
        "fields of Messages": messages_fields,
        "fields of objects": object_fields,
    },
    "cli.md": {"exit codes": exit_codes, "commands": commands},
    "configuration.md": {"settings": settings},
    "python.md": {"python": reference},
    "train.md": {"settings of stages": stage_settings},
}


def _marked(body: type[Body], name: str, kind: Any) -> Any:
    """What a field is marked with, if it is of that kind."""
    field = body.model_fields.get(name)
    return (
        next((each for each in field.metadata if isinstance(each, kind)), None) if field else None
    )


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if getattr(command, "commands", None) is None:
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _commands(f"{path} {name}", each)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("[]").upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _spelled(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(f"`{each}{value}`" for each in (*option.opts, *option.secondary_opts))


def _shared(names: list[str]) -> str:
    """Which settings a command takes, by the group where it takes all of it."""
    shown: list[str] = []
    for panel in dict.fromkeys(key.panel for key in KEYS):
        keys = [key for key in KEYS if key.panel == panel]
        taken = [key for key in keys if key.name in names]
        if len(taken) == len(keys) and panel != CHAT:
            shown.append(f"all of {panel}")
        else:
            shown += [f"`{key.flag}`" for key in taken]
    return ", ".join(shown)


def _settings() -> set[str]:
    return {key.name for key in KEYS}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
