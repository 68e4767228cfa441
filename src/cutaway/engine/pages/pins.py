"""Prefixes that are never evicted: each is computed once, and its pages are held from then on.

One that the engine was started with is shared: whoever's prompt begins with it finds it, whatever
their salt, since it is the operator's and nobody's secret. Behind its end each is alone again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cutaway.cache.paged import PagedCache, PageTables
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.text.chat_messages import Message, Text
from cutaway.text.prompt import encode
from cutaway.text.reach import render_whole

MOST_BYTES = 2**20  # of a file with a system prompt
_SHARER = "pinned prefixes"  # whose share of steps they take while they are computed


@dataclass(frozen=True, kw_only=True)
class PinCard:
    """A pinned prefix: its tokens in full pages, and the memory that it keeps.

    found: requests whose prompt began with it.
    """

    name: str
    num_tokens: int
    num_pages: int
    num_bytes: int
    is_ready: bool
    found: int


@dataclass(eq=False)
class _Pin:
    name: str
    token_ids: tuple[int, ...]  # of full pages
    root: bytes
    keys: tuple[bytes, ...]
    num_pages: int
    num_bytes: int
    tables: PageTables | None = None  # once it is computed
    found: int = 0

    @property
    def request_id(self) -> str:
        return f"pin-{self.name}"


class Pins:
    """The pinned prefixes of an engine.

    root:       of the keys of their pages, by the length that a request declares.
    page_bytes: of a page of each group.
    max_length: tokens of the longest sequence, for which there must be room beside them.
    """

    def __init__(
        self,
        cache: PagedCache,
        *,
        root: Callable[[int], bytes],
        page_bytes: Sequence[int],
        max_length: int,
    ) -> None:
        self._cache, self._root = cache, root
        self._page_bytes, self._max_length = tuple(page_bytes), max_length
        self._pins: dict[str, _Pin] = {}  # by the id of what computes them
        self._num_waiting = 0

    @property
    def cards(self) -> tuple[PinCard, ...]:
        """What is pinned, in the order in which it was."""
        return tuple(
            PinCard(
                name=pin.name,
                num_tokens=len(pin.token_ids),
                num_pages=pin.num_pages,
                num_bytes=pin.num_bytes,
                is_ready=pin.tables is not None,
                found=pin.found,
            )
            for pin in self._pins.values()
        )

    def begin(self, name: str, token_ids: Sequence[int]) -> Request:
        """What is to be computed for a prefix, of which whole pages are pinned.

        Raises: ConfigError for a name that is taken, less than a page, or too little room.
        """
        size = self._cache.page_size
        whole = tuple(token_ids[: len(token_ids) // size * size])
        if not whole:
            raise ConfigError(
                f"pin {quote(name)} has {len(token_ids)} tokens, and a page has {size}; only whole "
                "pages are pinned. Leave it out, or lower page_size."
            )
        root = self._root(len(whole) + 1)
        keys = self._cache.keys(root).between(0, len(whole) // size, whole)
        pages = self._cache.pages_of_hit(len(keys))
        pin = _Pin(
            name,
            whole,
            root,
            tuple(keys),
            sum(pages),
            sum(n * b for n, b in zip(pages, self._page_bytes, strict=True)),
        )
        if pin.request_id in self._pins:
            raise ConfigError(f"pin {quote(name)} is there already; give each another name.")
        self._check_room(pin, pages)
        self._pins[pin.request_id] = pin
        self._num_waiting += 1
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        return Request(
            request_id=pin.request_id, prompt_token_ids=whole, params=params, connection=_SHARER
        )

    def _check_room(self, pin: _Pin, pages: Sequence[int]) -> None:
        """Those that wait count as pinned: the longest sequence fits beside them all."""
        waiting = [self._cache.pages_of_hit(len(p.keys)) for p in self._waiting()]
        for group, (own, free) in enumerate(
            zip(pages, self._cache.unpinned_beside(self._max_length), strict=True)
        ):
            left = free - sum(each[group] for each in waiting)
            if own > left:
                raise ConfigError(
                    f"pin {quote(pin.name)} takes {own} pages, and {max(0, left)} are left beside "
                    f"the longest sequence of {self._max_length} tokens. Give the cache more "
                    "memory, or pin less."
                )

    def _waiting(self) -> list[_Pin]:
        return [pin for pin in self._pins.values() if pin.tables is None]

    def take(self, news: list[Delta]) -> list[Delta]:
        """News of others; prefixes that are computed now are held from now on."""
        if not self._num_waiting:
            return news
        dropped: set[str] = set()
        for delta in news:
            pin = self._pins.get(delta.request_id)
            if pin is None or delta.finish_reason is None:
                continue
            self._num_waiting -= 1
            pin.tables = None if delta.error else self._cache.pin(pin.keys)
            if pin.tables is None:
                del self._pins[delta.request_id]
                told = (
                    f"cutaway: pin {quote(pin.name)} was not computed: {delta.error or 'no room'}"
                )
                print(told, file=sys.stderr, flush=True)
                dropped.add(delta.request_id)
        return [d for d in news if d.request_id not in self._pins and d.request_id not in dropped]

    def keys_of(self, token_ids: Sequence[int], root: bytes) -> tuple[bytes, ...]:
        """Keys of the longest pinned prefix that a prompt begins with; none where none is.

        root: what pinned pages' keys begin with for a request of this kind.
        """
        longest: _Pin | None = None
        for pin in self._pins.values():
            is_longer = longest is None or len(pin.token_ids) > len(longest.token_ids)
            if pin.tables is None or pin.root != root or not is_longer:
                continue
            if tuple(token_ids[: len(pin.token_ids)]) == pin.token_ids:
                longest = pin
        if longest is None:
            return ()
        longest.found += 1
        return longest.keys

    def is_pin(self, request: Request) -> bool:
        """Whether a request computes a prefix that is to be pinned."""
        return request.request_id in self._pins and request.connection == _SHARER

    def forget(self) -> None:
        """Let all go: their pages' numbers are of other weights."""
        for pin in self._pins.values():
            if pin.tables is not None:
                self._cache.unpin(pin.tables)
        self._pins.clear()
        self._num_waiting = 0


def parse_pins(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Names and texts of a setting such as ("shop=prompts/shop.txt",). Raises: ConfigError."""
    pairs: list[tuple[str, str]] = []
    for each in settings:
        name, mark, path = each.partition("=")
        if not (name and mark and path):
            raise ConfigError(
                f"pin is {quote(each)}; it must be NAME=FILE, as in shop=prompts/shop.txt, whose "
                "text is a system prompt."
            )
        try:
            body = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"pin is {quote(each)}; {path}: {error.strerror}.") from None
        if len(body) > MOST_BYTES:
            raise ConfigError(
                f"pin is {quote(each)}; {path} has {len(body)} bytes, and at most {MOST_BYTES} are "
                "read."
            )
        try:
            pairs.append((name, body.decode("utf-8")))
        except UnicodeDecodeError:
            raise ConfigError(f"pin is {quote(each)}; {path} is not UTF-8.") from None
    return pairs


def tokens_of_system(model: LoadedModel, text: str) -> tuple[int, ...]:
    """The ids with which every conversation begins that has a system prompt.

    Two conversations are cut into tokens, and what both begin with is taken: what follows may grow
    together with the prompt's end.
    Raises: TemplateError.
    """
    plain = model.tokenizer.encode
    cut: list[list[int]] = []
    for said in ("a", "Zebras, 7"):
        turns = (Message("system", (Text(text),)), Message("user", (Text(said),)))
        prompt = render_whole(model.template, turns)
        inner = partial(plain, is_start=False)
        cut.append(encode(prompt, plain, model.tokenizer.control_tokens, encode_inner=inner))
    first, second = cut
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return tuple(first[:same])
