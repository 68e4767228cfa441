"""Renderings equal those of transformers, string for string, or both refuse."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jinja2
import pytest
from text_templates import STYLES, TALKS, TOOLS, Style
from transformers.utils.chat_template_utils import (
    _normalize_chat_messages,  # pyright: ignore[reportPrivateUsage]
    render_jinja_template,
)

from cutaway.core.errors import TemplateError
from cutaway.host import gguf_file
from cutaway.text.chat_messages import from_dicts
from cutaway.text.template import ChatTemplate
from oracles import HfName, smollm2_gguf, tokenizer_json

REFUSALS = (jinja2.TemplateError, TypeError, ValueError)


@cache
def compiled(name: str) -> ChatTemplate:
    return compiled_style(STYLES[name])


def compiled_style(style: Style) -> ChatTemplate:
    return ChatTemplate(
        style.source,
        bos_token=style.bos_token,
        eos_token=style.eos_token,
        control_strings=style.all_controls,
    )


def reference(
    style: Style,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None,
    extras: dict[str, Any],
    add_generation_prompt: bool = True,
) -> str | None:
    """What transformers renders, or None where it refuses."""
    special = {"bos_token": style.bos_token, "eos_token": style.eos_token}
    try:
        rendered, _ = render_jinja_template(
            conversations=[_normalize_chat_messages(messages)],
            tools=tools,
            chat_template=style.source,
            add_generation_prompt=add_generation_prompt,
            **{name: token for name, token in special.items() if token},
            **extras,
        )
    except REFUSALS:
        return None
    return rendered[0]


def references(
    style: Style, messages: list[dict[str, Any]], **asked: Any
) -> tuple[str | None, ...]:
    """What transformers renders of a history where no content is left out, is none, or is empty.

    What it refuses in one of these and renders in another is rendered.
    """
    bare = [message for message in messages if message.get("content") is None]
    given = reference(style, messages, **asked)
    if not bare:
        return (given,)
    filled = [{**m, "content": "" if m.get("content") is None else m["content"]} for m in messages]
    rendered = [each for each in (given, reference(style, filled, **asked)) if each is not None]
    return tuple(rendered) or (None,)


def ours(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None,
    extras: dict[str, Any],
    add_generation_prompt: bool = True,
) -> str | None:
    try:
        prompt = template.render(
            from_dicts(messages),
            tools=tools,
            extras=extras,
            add_generation_prompt=add_generation_prompt,
        )
    except TemplateError:
        return None
    return prompt.text


@pytest.mark.parametrize("name", STYLES)
def test_i03_renderings_equal_those_of_transformers(name: str) -> None:
    style = STYLES[name]
    rendered = 0
    for talk, messages in TALKS.items():
        for extras in style.extras:
            for tools in (None, TOOLS) if style.has_tools else (None,):
                for generation in (True, False):
                    asked = {
                        "tools": tools,
                        "extras": extras,
                        "add_generation_prompt": generation,
                    }
                    expected = references(style, messages, **asked)
                    assert ours(compiled(name), messages, **asked) in expected, (talk, extras)
                    rendered += expected[0] is not None
    assert rendered >= 6, "a template that refuses nearly everything compares nothing"


def test_there_are_twenty_styles_and_more() -> None:
    assert len(STYLES) >= 20


def published(name: HfName | str) -> Style:
    """The template of a published model, with its special tokens."""
    if name == "smollm2":
        source = gguf_file.read(smollm2_gguf()).text("tokenizer.chat_template")
        return Style(source, ("<|im_start|>", "<|im_end|>"), has_tools=True)
    folder = tokenizer_json("llama3" if name == "llama3" else "qwen3").parent
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    controls = [entry["content"] for entry in config["added_tokens_decoder"].values()]
    return Style(
        config["chat_template"],
        tuple(controls),
        bos_token=config.get("bos_token"),
        eos_token=config.get("eos_token"),
        has_tools=True,
    )


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["smollm2", "llama3", "qwen3"])
def test_i03_published_templates_render_as_in_transformers(name: str) -> None:
    style = published(name)
    template = compiled_style(style)
    rendered = 0
    for talk, messages in TALKS.items():
        for tools in (None, TOOLS):
            asked: dict[str, Any] = {"tools": tools, "extras": {}}
            expected = references(style, messages, **asked)
            assert ours(template, messages, **asked) in expected, talk
            rendered += expected[0] is not None
    assert rendered >= 10


def test_i03_json_keeps_letters_and_angle_brackets() -> None:
    template = ChatTemplate("{{ documents | tojson }}")
    prompt = template.render(
        from_dicts(TALKS["one question"]), extras={"documents": {"a": "<b>\u00e9"}}
    )
    assert prompt.text == '{"a": "<b>\u00e9"}'
