"""Requests of `cutaway bench`: prompts of random tokens, lengths of answers. Free of torch."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.core.request import Request, SamplingParams

NAMES = ("fixed", "spread", "prefix")


@dataclass(frozen=True)
class Workload:
    """Requests that all wait at the start. answer_tokens: of each prompt's answer."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    answer_tokens: tuple[int, ...]

    def requests(self, run: str, *, temperature: float = 0.0) -> list[Request]:
        """The requests, each by a name that no other run has."""
        return [
            Request(
                request_id=f"{run}-{number}",
                prompt_token_ids=prompt,
                params=SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True),
            )
            for number, (prompt, length) in enumerate(
                zip(self.prompts, self.answer_tokens, strict=True)
            )
        ]


def workload_of(
    name: str, *, requests: int, prompt_tokens: int, answer_tokens: int, vocab_size: int, seed: int
) -> Workload:
    """A workload by its name.

    fixed: every prompt and answer has that many tokens.
    spread: from a tenth of them to all, evenly. With 1,024, 1,024, 256 requests and seed 0 these
        are the requests of nano-vllm's bench.py, whose lengths are 100 to 1,024.
    prefix: as fixed, but the first three quarters of all prompts are the same.
    Raises: ConfigError for an unknown name, or a number below 1.
    """
    if name not in NAMES:
        raise ConfigError(f"workload is {quote(name)}; it must be one of {', '.join(NAMES)}.")
    given = {
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "answer_tokens": answer_tokens,
    }
    for field, value in given.items():
        if value < 1:
            raise ConfigError(f"{field} is {value}; it must be at least 1.")
    chance = random.Random(seed)
    highest = min(10_000, vocab_size - 1)

    def drawn(count: int) -> list[int]:
        return [chance.randint(0, highest) for _ in range(count)]

    def length(most: int) -> int:
        return chance.randint(-(-100 * most // 1024), most) if name == "spread" else most

    shared = drawn(prompt_tokens * 3 // 4) if name == "prefix" else []
    prompts = [(*shared, *drawn(length(prompt_tokens) - len(shared))) for _ in range(requests)]
    return Workload(name, tuple(prompts), tuple(length(answer_tokens) for _ in range(requests)))
