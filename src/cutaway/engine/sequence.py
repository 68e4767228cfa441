"""One running answer: prompt, output so far, and how much of it is in the cache. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutaway.cache.fork import Fork
from cutaway.cache.paged import PageTables
from cutaway.core.request import Request


@dataclass(eq=False)
class Sequence:
    """Prompt and output of one choice of a request.

    Invariant: num_computed_tokens <= num_tokens, and the keys and values of exactly
    token_ids[:num_computed_tokens] are stored where tables says.
    """

    request: Request
    choice: int  # which of the request's n answers
    seed: int  # resolved: never None
    max_length: int  # prompt and answer together; also the declared length for rotary bases
    cache_root: bytes  # what must be equal before two sequences may share pages
    pinned_keys: tuple[bytes, ...] = ()  # of pages of a pinned prefix with which it begins
    adapter: int = -1  # its place among those that are loaded; -1 without one
    load_id: bytes = b""  # of that adapter's load
    token_ids: list[int] = field(default_factory=list[int])
    draft_token_ids: list[int] = field(default_factory=list[int])
    draft_chances: list[float] = field(default_factory=list[float])  # where the drafter has some
    other_token_ids: list[int] = field(default_factory=list[int])  # guesses in place of the drafts
    fork: Fork | None = None  # where those are computed, while a step verifies both
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prefix hit when first admitted
    num_preemptions: int = 0
    last_step: int = 0  # the last one in which it was in
    tables: PageTables | None = None  # None while waiting
    owner: str = field(init=False)  # whose share of slots, steps and pages it takes

    def __post_init__(self) -> None:
        self.owner = self.request.sharer
        if not self.token_ids:
            self.token_ids = list(self.request.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The output so far, without the prompt."""
        return self.token_ids[self.num_prompt_tokens :]
