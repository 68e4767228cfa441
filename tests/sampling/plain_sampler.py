"""The draw in plain Python, one number at a time: the specification that every twin must repeat.

It follows docs/randomness.md and shares no code with the tensor version but the hash. Run it to
write the golden file that the twins in other languages are compared with:

    python tests/sampling/plain_sampler.py
"""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from cutaway.sampling.uniform import Purpose, uniform

GOLDEN = Path(__file__).parent / "golden" / "draw.json"

# The five coefficients and log2(e), as the bits of float32.
POLYNOMIAL = (0x3AADDD0A, 0x3C1E7544, 0x3D635BA9, 0x3E75FCDE, 0x3F317215)
LOG2_E = 0x3FB8AA3B


def float32(number: float) -> float:
    """Round to float32."""
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def bits(number: float) -> int:
    return struct.unpack("<I", struct.pack("<f", number))[0]


def from_bits(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word))[0]


def exponential(logit: float, peak: float) -> float:
    """e^(logit - peak): every operation is rounded to float32 by itself."""
    exponent = float32(float32(logit - peak) * from_bits(LOG2_E))
    exponent = max(exponent, -64.0)
    whole = round(exponent)  # half to even
    rest = float32(exponent - whole)
    result = float32(rest * from_bits(POLYNOMIAL[0]))
    for coefficient in POLYNOMIAL[1:]:
        result = float32(float32(result + from_bits(coefficient)) * rest)
    result = float32(result + 1.0)
    return math.ldexp(result, whole)


def weigh(logits: list[float]) -> list[int]:
    peak = max(logits)
    return [round(exponential(logit, peak) * 2**30) for logit in logits]


def logsumexp(logits: list[float]) -> float:
    peak = max(logits)
    total = sum(round(exponential(logit, peak) * 2**34) for logit in logits)
    return float32(peak + (math.log(total) - math.log(2**34)))


def temper(logits: list[float], temperature: float) -> list[float]:
    peak, divisor = max(logits), float32(temperature)
    return [float32(float32(logit - peak) / divisor) for logit in logits]


def cut_min_p(weights: list[int], min_p: float) -> list[int]:
    floor = round(min_p * 2**24) * 2**6
    return [weight if weight >= floor else 0 for weight in weights]


def cut_top_k(weights: list[int], logits: list[float], top_k: int) -> list[int]:
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = set(order[:top_k])
    return [weight if i in kept else 0 for i, weight in enumerate(weights)]


def cut_top_p(weights: list[int], top_p: float) -> list[int]:
    bound = Fraction(round(top_p * 2**32), 2**32) * sum(weights)
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    kept, before = {order[0]}, 0
    for i in order:
        if before < bound:
            kept.add(i)
        before += weights[i]
    return [weight if i in kept else 0 for i, weight in enumerate(weights)]


@dataclass(frozen=True)
class PlainDraw:
    weights: list[int]
    total: int
    target: int
    cumulative: int
    token_id: int


def draw(weights: list[int], u: int) -> PlainDraw:
    total = sum(weights)
    target, cumulative = u * total >> 32, 0
    for token_id, weight in enumerate(weights):
        cumulative += weight
        if cumulative > target:
            return PlainDraw(weights, total, target, cumulative, token_id)
    raise AssertionError("target is below total, so some token exceeds it")


def sample(
    logits: list[float],
    u: int,
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> PlainDraw:
    """The stages in order; a neutral one is left out."""
    if temperature != 1:
        logits = temper(logits, temperature)
    weights = weigh(logits)
    if min_p != 0:
        weights = cut_min_p(weights, min_p)
    if top_k > 0:
        weights = cut_top_k(weights, logits, top_k)
    if top_p != 1:
        weights = cut_top_p(weights, top_p)
    return draw(weights, u)


SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 5.0},
    {"temperature": 1e-5},
    {"top_k": 1},
    {"top_k": 20},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 0.8, "min_p": 0.02, "top_k": 40, "top_p": 0.95},
)


def random_logits(source: random.Random, size: int) -> list[float]:
    """Logits with ties, gaps and banned tokens."""
    logits = [float32(source.gauss(0, 3)) for _ in range(size)]
    for _ in range(size // 8):
        logits[source.randrange(size)] = logits[source.randrange(size)]
    logits[source.randrange(size)] = -math.inf
    logits[source.randrange(size)] = float32(max(logits))
    return logits


def golden() -> dict[str, object]:
    """Everything that a twin in another language needs to prove itself. Floats as float32 bits."""
    source = random.Random(20240601)
    return {
        "about": "written by tests/sampling/plain_sampler.py; floats are the bits of float32",
        "uniform": [_golden_uniform(source) for _ in range(32)],
        "exponential": [_golden_exponential(source) for _ in range(200)],
        "draw": [
            _golden_draw(source, settings, size) for settings in SETTINGS for size in (5, 64, 130)
        ],
    }


def _golden_uniform(source: random.Random) -> dict[str, object]:
    seed, choice = source.choice([0, -1, 7, source.getrandbits(63)]), source.randrange(128)
    position, purpose = source.choice([0, 1, source.getrandbits(32)]), source.choice(list(Purpose))
    u = uniform(seed, choice=choice, position=position, purpose=purpose)
    # The seed as text: a JSON number in JavaScript would lose its lower bits.
    return {
        "seed": str(seed),
        "choice": choice,
        "position": position,
        "purpose": int(purpose),
        "u": u,
    }


def _golden_exponential(source: random.Random) -> dict[str, int]:
    peak = float32(source.gauss(0, 10))
    logit = float32(peak - source.choice([0.0, 0.34657359, 1e-7, 100.0, source.expovariate(0.2)]))
    result = exponential(logit, peak)
    weight = round(result * 2**30)
    return {"logit": bits(logit), "peak": bits(peak), "result": bits(result), "weight": weight}


def _golden_draw(source: random.Random, settings: dict[str, float], size: int) -> dict[str, object]:
    logits, u = random_logits(source, size), source.getrandbits(32)
    drawn = sample(logits, u, **settings)  # pyright: ignore[reportArgumentType]
    return {
        "logits": [bits(logit) for logit in logits],
        "settings": settings,
        "u": u,
        "weights": drawn.weights,
        "total": drawn.total,
        "target": drawn.target,
        "cumulative": drawn.cumulative,
        "token_id": drawn.token_id,
        "logsumexp": bits(logsumexp(logits)),
    }


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden(), separators=(",", ":")) + "\n")
