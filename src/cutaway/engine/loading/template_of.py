"""The chat template of a found model, without its weights. Free of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from cutaway.core.errors import ModelFormatError, TemplateError
from cutaway.host import gguf_file
from cutaway.text.template import ChatTemplate, Elsewhere, choose_source
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.weights.find.find import Found


def template_source_of(found: Found) -> str | None:
    """The template's text that lies in or beside a model; None where there is none.

    Raises: ModelFormatError naming file and field.
    """
    if found.kind == "gguf":
        return gguf_template(gguf_file.read(found.path))
    return folder_template(found.path if found.kind == "folder" else found.path.parent)


def gguf_template(file: gguf_file.GgufFile) -> str | None:
    """The chat template of a GGUF file; where it has named ones alone, the one named default."""
    for key in ("tokenizer.chat_template", "tokenizer.chat_template.default"):
        if source := file.text(key, ""):
            return source
    return None


def folder_template(folder: Path) -> str | None:
    """The chat template: a file of its own wins over the one in tokenizer_config.json.

    Folders of models that see may have it in chat_template.json alone.
    """
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _chat_template(folder / name)
        if template is not None:
            return choose_source(template)
    return None


def _chat_template(path: Path) -> object:
    """The field of that name in a JSON file; None where either is absent."""
    if not path.is_file():
        return None
    try:
        values: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"is not JSON: {error}.", file=str(path), field="file") from None
    if not isinstance(values, dict):
        raise ModelFormatError("must be a JSON object.", file=str(path), field="file")
    return cast("dict[str, object]", values).get("chat_template")


def compiled_template(
    source: str | None, *, name: str, tokenizer: Tokenizer, elsewhere: Elsewhere | None = None
) -> ChatTemplate:
    """The template of a model of that name, with the tokens that its tokenizer knows.

    elsewhere: where long renderings go on; None renders all of them here.

    Raises: TemplateError when there is none, or it is at fault.
    """
    if source is None:
        raise TemplateError(
            f"{name} has no chat template, so it was not tuned for chat; it continues plain "
            "prompts: `cutaway complete`, or /v1/completions of a server."
        )
    names = {token_id: name for name, token_id in tokenizer.control_tokens.items()}
    bos, ends = tokenizer.bos_token_id, sorted(tokenizer.eos_token_ids)
    return ChatTemplate(
        source,
        bos_token=None if bos is None else names.get(bos),
        eos_token=names.get(ends[0]) if ends else None,
        control_strings=frozenset(tokenizer.control_tokens),
        elsewhere=elsewhere,
    )
