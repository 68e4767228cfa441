"""Adapters that serve beside a model's weights: loaded and unloaded while it runs, by name.

An answer has one adapter or none, from its first token to its last. Pages of different adapters
never meet: a digest of its numbers is part of what names a page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from cutaway.blocks.linear import Linear, LowRankPair, LowRankPairs
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.limits import quote
from cutaway.core.weight_targets import Target
from cutaway.weights.adapter import read_pairs

OFF = "off"  # in place of a name: the model alone
MOST = 64  # loaded at once


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter.

    place:   its number among the pairs of every linear map, which a step's tokens name.
    load_id: of its numbers: pages of what multiplies alike may be shared, by other engines too.
    """

    name: str
    path: str
    place: int
    load_id: bytes
    rank: int
    num_matrices: int
    num_bytes: int


class Adapters:
    """What is loaded beside one model.

    targets: of the architecture, in the hub's layout.
    version: rises whenever linear maps have other pairs than before.
    """

    def __init__(self, transformer: nn.Module, targets: Mapping[str, Target]) -> None:
        self._transformer, self._targets = transformer, targets
        self._by_name: dict[str, Adapter] = {}
        self._placed: list[Adapter | None] = []  # by place, those that only end included
        self._pairs: dict[
            str, list[list[LowRankPair | None] | None]
        ] = {}  # of linear maps, by place
        self.version = 0

    @classmethod
    def none(cls) -> Adapters:
        """Of a model beside which nothing can be loaded."""
        return cls(nn.Module(), {})

    @property
    def loaded(self) -> tuple[Adapter, ...]:
        """Those that requests can name, in the order of their loading."""
        return tuple(self._by_name.values())

    def find(self, name: str) -> Adapter | None:
        """The adapter of a request; None for one without. Raises: RequestError naming all."""
        if name in ("", OFF):
            return None
        if name not in self._by_name:
            known = ", ".join(self._by_name) or "none"
            raise RequestError(
                f"lora is {quote(name)}; loaded are: {known}. Load it first, or send {quote(OFF)}.",
                param="lora",
            )
        return self._by_name[name]

    def holds(self, load_id: bytes) -> Adapter | None:
        """The adapter of a load, if its pairs are still there."""
        return next((each for each in self._placed if each and each.load_id == load_id), None)

    def load(self, name: str, path: str) -> Adapter:
        """Put a folder's adapter beside the model.

        Raises: ConfigError for a name that is taken or impossible; ModelFormatError naming file,
        field and what the model has. Nothing is changed then.
        """
        is_bad = not name or name == OFF or len(name) > 200 or not name.isprintable()
        if is_bad or "=" in name:  # that ends a name where both are written as one
            raise ConfigError(
                f"lora names an adapter {quote(name)}; a name has 1 to 200 printable characters, "
                f"none of them =, and is not {quote(OFF)}."
            )
        if name in self._by_name:
            raise ConfigError(f"lora {quote(name)} is loaded already; unload it first.")
        if len(self._by_name) == MOST:
            raise ConfigError(f"{MOST} adapters are loaded, which is the most; unload one first.")
        pairs = read_pairs(Path(path), self._transformer, self._targets)
        place = next((i for i, each in enumerate(self._placed) if each is None), len(self._placed))
        found = [pair for segments in pairs.values() for pair in segments.values()]
        adapter = Adapter(
            name=name,
            path=path,
            place=place,
            load_id=_digest(pairs),
            rank=max(len(pair.down) for pair in found),
            num_matrices=len(found),
            num_bytes=sum(pair.down.nbytes + pair.up.nbytes for pair in found),
        )
        if place == len(self._placed):
            self._placed.append(None)
        self._placed[place] = adapter
        self._by_name[name] = adapter
        for module, segments in pairs.items():
            rows = self._linear(module).rows
            own = self._pairs.setdefault(module, [])
            own += [None] * (place + 1 - len(own))
            own[place] = [segments.get(index) for index in range(len(rows))]
        self._apply()
        return adapter

    def unload(self, name: str) -> Adapter:
        """Take an adapter away from new requests; free() lets its pairs go.

        Raises: ConfigError where none of that name is loaded.
        """
        if name not in self._by_name:
            known = ", ".join(self._by_name) or "none"
            raise ConfigError(f"lora {quote(name)} is not loaded; loaded are: {known}.")
        return self._by_name.pop(name)

    @property
    def has_ended(self) -> bool:
        """Whether pairs are kept for answers that began before their adapter was unloaded."""
        return sum(each is not None for each in self._placed) > len(self._by_name)

    def free(self, in_use: Iterable[int]) -> None:
        """Drop the pairs of unloaded adapters, but for those at places that answers have."""
        kept = {each.place for each in self._by_name.values()} | set(in_use)
        gone = [place for place, each in enumerate(self._placed) if each and place not in kept]
        for place in gone:
            self._placed[place] = None
            for own in self._pairs.values():
                if place < len(own):
                    own[place] = None
        if gone:
            self._apply()

    def _apply(self) -> None:
        count = len(self._placed)
        for module, own in self._pairs.items():
            linear = self._linear(module)
            own += [None] * (count - len(own))
            linear.pairs = LowRankPairs(linear.rows, own) if any(own) else None
        self.version += 1

    def _linear(self, module: str) -> Linear:
        return cast(Linear, self._transformer.get_submodule(module))


def _digest(pairs: Mapping[str, Mapping[int, LowRankPair]]) -> bytes:
    """Equal for pairs that are equal to the bit, at the same places."""
    made = hashlib.blake2b(digest_size=16)
    for module, segments in sorted(pairs.items()):
        for index, pair in sorted(segments.items()):
            made.update(f"{module}:{index}:{pair.down.dtype}:{tuple(pair.down.shape)}".encode())
            for each in (pair.down, pair.up):
                made.update(each.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return made.digest()


def parse(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Names and folders of a setting such as ("law=adapters/law",). Raises: ConfigError."""
    if list(settings) == [OFF]:
        return []
    pairs: list[tuple[str, str]] = []
    for each in settings:
        name, mark, path = each.partition("=")
        if not (name and mark and path):
            raise ConfigError(
                f"lora is {quote(each)}; it must be NAME=FOLDER, as in law=adapters/law, or {OFF}."
            )
        pairs.append((name, path))
    return pairs
