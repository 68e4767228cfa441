"""Which beginnings of prompts each engine probably has in its cache, in bounded memory.

A guess from what was sent there: engines tell no events. It forgets what an engine of that size
would have dropped, and sooner where an answer tells that less was found than was thought. Free of
torch and of clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from cutaway.cache.prefix import PageKeys, root_key

MOST_BYTES: Final = 64 * 2**20  # of all members together
ENTRY_BYTES: Final = 200  # a key, a number and their place in a dictionary, as tracemalloc has it
PAGES_PER_KEY: Final = 4  # a key for every fourth page: 64 tokens at 16 a page
_KEY_BYTES: Final = 16


@dataclass(eq=False)
class _Known:
    """What one member has, the longest unused first; the values count uses."""

    num_tokens: int  # that its cache holds
    uses: dict[bytes, int] = field(default_factory=dict[bytes, int])


class Prefixes:
    """The beginnings that members have."""

    def __init__(self, secret: bytes, *, page_size: int, most_bytes: int = MOST_BYTES) -> None:
        self.block_tokens = PAGES_PER_KEY * page_size
        self._secret = secret
        self._most_entries = most_bytes // ENTRY_BYTES
        self._members: dict[str, _Known] = {}
        self._count = count(1)

    def __len__(self) -> int:
        """How many keys are kept, of all members."""
        return sum(len(known.uses) for known in self._members.values())

    def join(self, member: str, num_tokens: int) -> None:
        """A member whose cache is empty. num_tokens: that it can hold."""
        self._members[member] = _Known(num_tokens)

    def leave(self, member: str) -> None:
        """Forget a member, which may be unknown."""
        self._members.pop(member, None)

    def keys(self, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        """A key for each whole block; owners with other salts have other keys."""
        made = PageKeys(root_key(self._secret, salt), self.block_tokens)
        num_blocks = len(token_ids) // self.block_tokens
        return [key[:_KEY_BYTES] for key in made.between(0, num_blocks, token_ids)]

    def found_tokens(self, member: str, keys: Sequence[bytes]) -> int:
        """Tokens at the beginning that a member probably has.

        Of one prompt a later block is always dropped before an earlier one, so halving finds it.
        """
        known = self._members.get(member)
        if known is None:
            return 0
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in known.uses:
                low = middle
            else:
                high = middle - 1
        return low * self.block_tokens

    def note(self, member: str, keys: Sequence[bytes]) -> int:
        """A member has, or will soon have, these blocks. Returns the number of this use."""
        known = self._members.get(member)
        number = next(self._count)
        if known is None:
            return number
        for key in reversed(keys):  # the first block is used last, and so dropped last
            known.uses.pop(key, None)
            known.uses[key] = number
        most = min(known.num_tokens // self.block_tokens, self._most_entries // len(self._members))
        while len(known.uses) > most:
            del known.uses[next(iter(known.uses))]
        return number

    def last_use(self, member: str, keys: Sequence[bytes], tokens: int) -> int:
        """When the last block of so many tokens was used by anybody; 0 for never."""
        known, block = self._members.get(member), tokens // self.block_tokens
        if known is None or not 0 < block <= len(keys):
            return 0
        return known.uses.get(keys[block - 1], 0)

    def correct(self, member: str, use: int) -> None:
        """What was used then was not found: nor is, surely, what was used before it."""
        known = self._members.get(member)
        while known is not None and known.uses:
            oldest = next(iter(known.uses))
            if known.uses[oldest] > use:
                return
            del known.uses[oldest]
