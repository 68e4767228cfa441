"""Which tokens begin a text, end an answer or are control tokens: files beside tokenizer.json.

add_eos_token is not applied: a prompt is there to be continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number
from cutaway.tokens.added import AddedToken
from cutaway.tokens.files.json_node import JsonNode


@dataclass(frozen=True)
class Roles:
    """Ids by role; adds_bos is None where the files do not say."""

    bos: int | None
    eos: frozenset[int]
    control: frozenset[int]
    adds_bos: bool | None


def read_roles(folder: Path, ids: Mapping[str, int]) -> Roles:
    """What tokenizer_config.json, special_tokens_map.json and generation_config.json say.

    None of them need be there; of two that disagree the first named wins. A token that is named
    is a control token; one that is only numbered as an end may be an ordinary one, a line end say.
    Raises: ModelFormatError, for a bos or eos that is no token for instance.
    """
    config, names, generation = (
        _read(folder / f"{name}.json")
        for name in ("tokenizer_config", "special_tokens_map", "generation_config")
    )
    named_bos = [*_named(config, "bos", ids), *_named(names, "bos", ids)]
    named_eos = [*_named(config, "eos", ids), *_named(names, "eos", ids)]
    bos = [*named_bos, *_numbers(generation, "bos")]
    others = {
        ids[token.text()]
        for file in (config, names)
        for token in _other_tokens(file)
        if token.text() in ids
    }
    add_bos = config["add_bos_token"]
    if add_bos.value is True and not bos:
        raise add_bos.fault("false where no bos_token is named")
    return Roles(
        bos=bos[0] if bos else None,
        eos=frozenset({*named_eos, *_numbers(generation, "eos")}),
        control=frozenset({*named_bos, *named_eos, *others}),
        adds_bos=None if add_bos.value is None else add_bos.flag(default=False),
    )


def read_added(folder: Path, ids: Mapping[str, int]) -> tuple[AddedToken, ...]:
    """Tokens beside a vocabulary that cannot name its own, and those of its own that are special.

    They stand in added_tokens_decoder of tokenizer_config.json, and in added_tokens.json.

    ids: of the vocabulary.
    Raises: ModelFormatError, for an id that another token has for instance.
    """
    listed = [
        (node["content"], _number_of(key, node), node["special"].flag(default=False))
        for key, node in _members(_read(folder / "tokenizer_config.json")["added_tokens_decoder"])
    ]
    plain = _read(folder / "added_tokens.json")
    contents = {content.text() for content, _, _ in listed}
    listed += [
        (JsonNode(key, node.file, node.path), node.number(), False)
        for key, node in _members(plain)
        if key not in contents
    ]
    texts = {token_id: text for text, token_id in ids.items()}
    added: dict[int, AddedToken] = {}
    for content, token_id, is_special in listed:
        text = content.text()
        if ids.get(text, token_id) != token_id or texts.get(token_id, text) != text:
            raise content.fault(
                f"{quote(texts.get(token_id, text))}, as token {token_id} is called"
            )
        if is_special or text not in ids:
            added[token_id] = AddedToken(token_id=token_id, content=text, is_control=is_special)
    return tuple(added.values())


def _members(node: JsonNode) -> Iterator[tuple[str, JsonNode]]:
    for key in node.mapping() if node.value is not None else ():
        yield key, node[key]


def _number_of(key: str, node: JsonNode) -> int:
    number = whole_number(key)
    if number is None:
        raise node.fault("listed under a token id")
    return number


def _read(path: Path) -> JsonNode:
    return JsonNode.beside(path, path.stem)


def _named(file: JsonNode, role: str, ids: Mapping[str, int]) -> list[int]:
    tokens = list(_contents(file[f"{role}_token"]))
    for token in tokens:
        if token.text() not in ids:
            raise token.fault("a token of the vocabulary")
    return [ids[token.text()] for token in tokens]


def _other_tokens(file: JsonNode) -> Iterator[JsonNode]:
    yield from _contents(file["pad_token"])
    yield from _contents(file["unk_token"])
    for each in file["additional_special_tokens"].items():
        yield from _contents(each)


def _contents(node: JsonNode) -> Iterator[JsonNode]:
    """A token is a string, or an object that holds the string, or absent."""
    if isinstance(node.value, dict):
        yield node["content"]
    elif node.value is not None:
        yield node


def _numbers(file: JsonNode, role: str) -> list[int]:
    node = file[f"{role}_token_id"]
    if isinstance(node.value, list):
        return node.numbers()
    return [] if node.value is None else [node.number()]
