"""Inverse frequencies of rotary embeddings and the ways in which models stretch them.

Where a base depends on length it is fixed per request by its declared length, so that decoding
with a cache equals one full forward; key() is what then keeps two requests' pages apart.
Angles are taken in float64: at position 8,000 a float32 product is off by up to 5e-4 radian.

Descriptions are plain data: torch is imported where angles are computed, so that a configuration
is read without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KEEPS_INVERSE = frozenset({"cuda"})  # devices on which making it anew takes a dozen kernels a step
_LONG = 1 << 40  # a declared length above any trained one
_kept: dict[tuple[Frequencies, torch.device], Tensor] = {}


class Frequencies(Protocol):
    """Angle per position of each pair of a head."""

    @property
    def size(self) -> int:
        """Entries of a head that are turned, or may be: C'."""
        ...

    @property
    def attention_factor(self) -> float:
        """What cosine and sine are multiplied by."""
        ...

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Return radians per position, float64.

        Shapes: declared_lengths [T] -> [1, C'/2] when length plays no part, else [T, C'/2].
        """
        ...

    def key(self, declared_length: int) -> int:
        """Equal for two declared lengths exactly if they give equal frequencies."""
        ...


@dataclass(frozen=True)
class Plain:
    """base ** (-2i / size) for pair i, divided by factors[i] where a file carries them.

    Source: Su et al. 2021, arXiv 2104.09864. Factors: rope_freqs.weight of a GGUF file, the
    only carrier of Llama-3 scaling there.
    """

    size: int  # entries of a head that rotate, C'
    base: float
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [1, C'/2]."""
        inverse = _inverse(self.size, self.base, declared_lengths.device)
        if self.factors:
            inverse = inverse / inverse.new_tensor(self.factors)
        return inverse[None]

    def key(self, declared_length: int) -> int:
        """0: the declared length plays no part."""
        return 0


@dataclass(frozen=True)
class Proportional:
    """The frequencies of a whole head, of which only the first share turns; the others stand.

    base ** (-2i / size) / factor for pair i below turning, 0 for the rest.
    Source: Hugging Face _compute_proportional_rope_parameters.
    """

    size: int
    base: float
    turning: int  # pairs
    factor: float = 1.0
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [1, C'/2]."""
        inverse = _inverse(self.size, self.base, declared_lengths.device) / self.factor
        inverse[self.turning :] = 0.0
        return inverse[None]

    def key(self, declared_length: int) -> int:
        """0: the declared length plays no part."""
        return 0


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by factor. Source: Chen et al. 2023, arXiv 2306.15595."""

    size: int
    base: float
    factor: float
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [1, C'/2]."""
        return _inverse(self.size, self.base, declared_lengths.device)[None] / self.factor

    def key(self, declared_length: int) -> int:
        """0: the declared length plays no part."""
        return 0


@dataclass(frozen=True)
class Dynamic:
    """Base that grows once the declared length passes the trained one (NTK-aware).

    base * (factor * n / trained - (factor - 1)) ** (size / (size - 2)) for length n > trained.
    Source: Hugging Face _compute_dynamic_ntk_parameters; there n is the current length, here
    the request's declared one.
    """

    size: int
    base: float
    factor: float
    trained_length: int
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [T, C'/2]."""
        length = declared_lengths.double().clamp_min(self.trained_length)[:, None]
        stretch = self.factor * length / self.trained_length - (self.factor - 1)
        base = self.base * _power(stretch, self.size / (self.size - 2))  # [T, 1]
        return _power(base, -_exponents(self.size, declared_lengths.device))

    def key(self, declared_length: int) -> int:
        """The declared length, where it is above the trained one; else the trained one."""
        return max(declared_length, self.trained_length)


@dataclass(frozen=True)
class Yarn:
    """Fast pairs kept, slow pairs divided by factor, a ramp between.

    Source: Peng et al. 2023, arXiv 2309.00071; Hugging Face _compute_yarn_parameters.
    """

    size: int
    base: float
    factor: float
    trained_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # see yarn_attention_factor

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [1, C'/2]."""
        inverse = _inverse(self.size, self.base, declared_lengths.device)
        low, high = self._pair_turning(self.beta_fast), self._pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.size - 1)
        if low == high:
            high += 0.001  # the reference does the same: a ramp of no width divides by zero
        pairs = _count(self.size // 2, inverse.device)
        slow_share = ((pairs - low) / (high - low)).clamp(0, 1)
        return (inverse / self.factor * slow_share + inverse * (1 - slow_share))[None]

    def _pair_turning(self, rotations: float) -> float:
        """Index of the pair that turns so many times over the trained length."""
        turns = self.trained_length / (rotations * 2 * math.pi)
        return self.size * math.log(turns) / (2 * math.log(self.base))

    def key(self, declared_length: int) -> int:
        """0: the declared length plays no part."""
        return 0


def scaling_name(frequencies: Frequencies) -> str:
    """Its name in messages, payloads and traces: the class's, without the suffix."""
    return type(frequencies).__name__.removesuffix("Scaling")


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """YaRN's factor on cosine and sine: m(factor), or a ratio where both scales are given."""

    def m(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return m(mscale) / m(mscale_all_dim)
    return m(1.0)


@dataclass(frozen=True)
class LongRope:
    """Own divisor per pair, one set up to the trained length and one past it.

    Source: Ding et al. 2024, arXiv 2402.13753; Hugging Face _compute_longrope_parameters.
    """

    size: int
    base: float
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    trained_length: int
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [T, C'/2]."""
        inverse = _inverse(self.size, self.base, declared_lengths.device)
        is_long = (declared_lengths > self.trained_length)[:, None]
        short, long = _factors(self, inverse.device)
        return inverse / long.where(is_long, short)

    def key(self, declared_length: int) -> int:
        """1 where the declared length is above the trained one, else 0."""
        return int(declared_length > self.trained_length)


@dataclass(frozen=True)
class Llama3:
    """Slow pairs divided by factor, fast ones kept, a linear blend between.

    Source: Hugging Face _compute_llama3_parameters.
    """

    size: int
    base: float
    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    trained_length: int
    attention_factor: float = 1.0

    def inverse(self, declared_lengths: Tensor) -> Tensor:
        """Radians per position of each pair, float64. Shapes: declared_lengths [T] -> [1, C'/2]."""
        inverse = _inverse(self.size, self.base, declared_lengths.device)
        turns = self.trained_length * inverse / (2 * math.pi)  # over the trained length
        span = self.high_frequency_factor - self.low_frequency_factor
        fast_share = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return (inverse * fast_share + inverse / self.factor * (1 - fast_share))[None]

    def key(self, declared_length: int) -> int:
        """0: the declared length plays no part."""
        return 0


def angles(
    frequencies: Frequencies, positions: Tensor, declared_lengths: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine per token and pair.

    Shapes: positions, declared_lengths [T] -> two of [T, C'/2] in dtype.
    """
    from cutaway.kernels.rotary import cosines

    inverse = _kept_inverse(frequencies, declared_lengths)
    return cosines(positions, inverse, frequencies.attention_factor, dtype)


def _kept_inverse(frequencies: Frequencies, declared_lengths: Tensor) -> Tensor:
    """Radians per position; made once on a device that keeps them, if lengths play no part."""
    import torch

    device = declared_lengths.device
    if device.type not in KEEPS_INVERSE or frequencies.key(1) != frequencies.key(_LONG):
        return frequencies.inverse(declared_lengths)
    found = _kept.get((frequencies, device))
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = frequencies.inverse(declared_lengths)
        # What is made during a capture is there only when the graph has run.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _kept[frequencies, device] = found
    return found


@cache
def _factors(frequencies: LongRope, device: torch.device) -> Tensor:
    """Its divisors on a device, short and long: [2, C'/2], float64. Copied there once.

    A copy from pageable memory cannot be captured; whatever is captured has run before.
    """
    import torch

    factors = (frequencies.short_factors, frequencies.long_factors)
    with torch.inference_mode(False):
        return torch.tensor(factors, dtype=torch.float64, device=device)


def _exponents(size: int, device: torch.device) -> Tensor:
    return 2 * _count((size + 1) // 2, device) / size


def _count(number: int, device: torch.device) -> Tensor:
    import torch

    return torch.arange(number, dtype=torch.float64, device=device)


def _inverse(size: int, base: float, device: torch.device) -> Tensor:
    return _power(base, -_exponents(size, device))


def _power(base: Tensor | float, exponent: Tensor | float) -> Tensor:
    from cutaway.kernels.elementwise import power

    return power(base, exponent)
