"""An amount that owners share: a flood of one leaves room for the others."""

from __future__ import annotations

from collections import Counter

# An owner gets more while it holds less than so many times what is free: alone 4/5 of a bound, so
# that others find room. Choudhury and Hahne 1998 share the buffers of switches this way.
SHARE = 4


class SharedBound:
    """How much of something owners hold, and whether one may hold more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: Counter[str] = Counter()

    @property
    def left(self) -> int:
        """What nobody holds; below 0 when one that came first brought more than all."""
        return self.most - self.total

    def has_room(self, owner: str, amount: int = 1, *, coming: int = 0) -> bool:
        """Whether an owner may hold so much more; whoever comes when it is empty may.

        coming: what it is about to hold besides.
        """
        left = self.left - coming
        if not self.total and not coming:
            return True
        return amount <= left and self._held[owner] + coming < SHARE * left

    def take(self, owner: str, amount: int = 1) -> None:
        """Count what an owner holds from now on; whether it may is for has_room to say."""
        self._held[owner] += amount
        self.total += amount

    def give(self, owner: str, amount: int = 1) -> None:
        """Count what an owner gives back."""
        self.total -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]  # owners come and go
