"""Parts of a tokenizer.json that every kind of tokenizer has: ids, added tokens, templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.tokens.added import AddedToken
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.oniguruma.pattern import OnigurumaPattern
from cutaway.tokens.unicode import is_unicode


def refuse_part(node: JsonNode, known: str) -> UnsupportedModelError:
    """The error for a part of another kind. known: what is known, in words."""
    return UnsupportedModelError(
        f"{node.file}: {node.path} is {quote(node.value)}; Cutaway knows {known}."
    )


def vocabulary_ids(vocab: JsonNode) -> dict[str, int]:
    """The id of each token's text.

    Raises: ModelFormatError for an empty vocabulary, an id below 0, or a broken character.
    """
    ids = vocab.mapping()
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids.values()):
        raise next(vocab[t] for t, i in ids.items() if type(i) is not int or i < 0).fault(
            "an integer from 0"
        )
    if not ids or not is_unicode("".join(ids)):
        raise vocab.fault("a vocabulary of at least one token, all of whole characters")
    return cast("dict[str, int]", ids)


def added_token(node: JsonNode, ids: Mapping[str, int]) -> AddedToken:
    """One entry of added_tokens, with its flags.

    Raises: ModelFormatError where the vocabulary gives its text another id.
    """
    content, token_id = node["content"].text(), node["id"].number()
    if ids.get(content, token_id) != token_id:
        raise node["id"].fault(f"{ids[content]}, which the vocabulary gives to {quote(content)}")
    is_control = node["special"].flag(default=False)
    return AddedToken(
        token_id=token_id,
        content=content,
        is_control=is_control,
        takes_left=node["lstrip"].flag(default=False),
        takes_right=node["rstrip"].flag(default=False),
        single_word=node["single_word"].flag(default=False),
        is_normalized=node["normalized"].flag(default=not is_control),
    )


def added_tokens(root: JsonNode, ids: Mapping[str, int]) -> list[AddedToken]:
    """All entries of added_tokens, each with the id that HF's tokenizers give it.

    They ignore the listed id: a token of the vocabulary keeps its own, every other gets the next.
    Source: tokenizers, added_vocabulary.rs, add_tokens.
    Raises: ModelFormatError where that is another one.
    """
    vocab = root["model"]["vocab"].value
    # A list of scored pieces may name one twice.
    size = len(cast("list[object]", vocab)) if isinstance(vocab, list) else len(ids)
    highest, seen = -1, set[str]()
    listed: list[AddedToken] = []
    for node in root["added_tokens"].items():
        token = added_token(node, ids)
        listed.append(token)
        if not token.content or token.content in seen:
            continue
        seen.add(token.content)
        given = ids.get(token.content, max(size, highest + 1))
        if given != token.token_id:
            raise node["id"].fault(
                f"{given}, which HF's tokenizers give to {quote(token.content)} as the vocabulary "
                "does not have it. Write the file again with the package that made it"
            )
        highest = max(highest, given)
    return listed


def with_control(
    listed: list[AddedToken], ids: Mapping[str, int], control: frozenset[int]
) -> tuple[AddedToken, ...]:
    """The added tokens; a token that has a role is one of them, and is control."""
    tokens = {
        token_id: AddedToken(token_id=token_id, content=content)
        for content, token_id in ids.items()
        if token_id in control
    } | {token.token_id: token for token in listed}
    return tuple(
        replace(token, is_control=token.is_control or token.token_id in control)
        for token in tokens.values()
    )


def pattern_of(node: JsonNode) -> OnigurumaPattern:
    """The pattern of a step: an expression, or a text that stands for itself.

    Raises: UnsupportedModelError naming file, field and the sign that is not known.
    """
    if node["Regex"].value is None:
        return OnigurumaPattern.literal(node["String"].text())
    expression = node["Regex"]
    try:
        return OnigurumaPattern(expression.text())
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{node.file}: {expression.path}: {error}") from None


def flat(node: JsonNode, members: str) -> list[JsonNode]:
    """The steps of a Sequence, or the one step that stands alone."""
    if node.value is not None and node["type"].value == "Sequence":
        return [step for each in node[members].items() for step in flat(each, members)]
    return [node]


def template_ids(step: JsonNode) -> Iterator[int]:
    """Ids that a template puts in front of a single text."""
    if step.value is None or step["type"].value == "ByteLevel":
        return
    if step["type"].value != "TemplateProcessing":
        raise refuse_part(step["type"], "ByteLevel and TemplateProcessing")
    seen_text = False
    for part in step["single"].items():
        if "Sequence" in part.mapping():
            seen_text = True
        elif seen_text:
            raise refuse_part(step["single"], "templates that add tokens in front only")
        else:
            name = part["SpecialToken"]["id"].text()
            yield from step["special_tokens"][name]["ids"].numbers()
