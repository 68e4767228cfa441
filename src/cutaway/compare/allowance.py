"""What a comparison may take: tokens, memory and operations, held to before they are spent."""

from __future__ import annotations

from collections.abc import Callable

from cutaway.core.errors import RequestError

Tell = Callable[[str], None]


class Allowance:
    """Bounds of one comparison; None is none.

    max_tokens: of each side's answer.   left: bytes that may still be taken.
    tell: hears what memory is taken, before it is.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
        max_flops: int | None = None,
        tell: Tell = lambda words: None,
    ) -> None:
        self.max_tokens = max_tokens
        self.left = max_bytes
        self._max_flops = max_flops
        self._tell = tell

    def take(self, num_bytes: float, words: str) -> None:
        """Memory for something. Raises: RequestError where there is not so much left."""
        if self.left is not None:
            if num_bytes > self.left:
                raise RequestError(
                    f"{words}, of which {self.left / 2**20:,.1f} MiB are left. Compare a shorter "
                    "answer, or raise max_bytes.",
                    param="max_bytes",
                )
            self.left -= int(num_bytes)
        self._tell(words)

    def check_flops(self, flops: float) -> None:
        """Check what is allowed to be computed.

        Raises: RequestError where all runs together compute more than they may.
        """
        if self._max_flops is not None and flops > self._max_flops:
            raise RequestError(
                f"this comparison takes up to {flops:,.0f} FLOPs; allowed are "
                f"{self._max_flops:,}. Ask for fewer runs or tokens, or raise max_flops.",
                param="max_flops",
            )
