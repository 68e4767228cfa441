"""The numbers and the example on the pages are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from plain_sampler import POLYNOMIAL, bits, exponential, float32

from cutaway.core.limits import LIMITS
from cutaway.sampling import integer_weights
from cutaway.sampling.sampler import ORDER
from cutaway.sampling.uniform import Purpose, uniform

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NATIVE = ROOT / "native" / "kernels"
KERNELS = ROOT / "src" / "cutaway" / "kernels"
SPECIFICATION = (DOCS / "randomness.md").read_text(encoding="utf-8")
PAGE = (DOCS / "sampling.md").read_text(encoding="utf-8")


def rows_of(header: str) -> list[list[str]]:
    """The cells of the table with that header."""
    table = SPECIFICATION.partition(header)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]


def test_random_numbers_of_the_specification() -> None:
    rows = rows_of("| seed | choice | position | purpose | u |")
    assert len(rows) == 8
    for seed, choice, position, purpose, u in rows:
        drawn = uniform(
            int(seed), choice=int(choice), position=int(position), purpose=Purpose(int(purpose))
        )
        assert drawn == int(u, 16)


def test_weights_of_the_specification() -> None:
    rows = rows_of("| logit | m | e, bits | weight |")
    assert len(rows) == 5
    for logit, peak, result, weight in rows:
        plain = exponential(float32(float(logit)), float(peak))
        assert (bits(plain), round(plain * 2**30)) == (int(result, 16), int(weight))
        tensor = integer_weights.exponential(
            torch.tensor([[float(logit)]]), torch.tensor([[float(peak)]])
        )
        assert bits(tensor.item()) == int(result, 16)


def test_constants_of_the_specification() -> None:
    words = [int(word, 16) for word in re.findall(r"0x3[0-9A-F]{7}\b", SPECIFICATION)]
    assert words == [bits(integer_weights.LOG2_E), *POLYNOMIAL]
    assert [bits(each) for each in integer_weights.POLYNOMIAL] == list(POLYNOMIAL)


def test_constants_of_other_languages() -> None:
    header = (NATIVE / "exponential.h").read_text(encoding="utf-8")
    table = header.partition("kPolynomial[5] = {")[2].partition("}")[0]
    words = re.findall(r"0x1\.[0-9a-f]+p-\d+", table)
    assert [bits(float.fromhex(word)) for word in words] == list(POLYNOMIAL)
    kernels = (KERNELS / "sample" / "weights.py").read_text(encoding="utf-8")
    body = kernels.partition("def exponential(")[2].partition("@triton.jit")[0]
    decimals = [float(word) for word in re.findall(r"\b[01]\.\d{6,}", body)]
    assert [bits(each) for each in decimals] == [bits(integer_weights.LOG2_E), *POLYNOMIAL]


def test_the_page_lists_the_stages_in_order() -> None:
    names = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert names == [stage.name for stage in ORDER]
    assert set(names) - {"grammar", "bans", "penalties"} <= set(LIMITS)


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program = PAGE.partition("```python\n")[2].partition("```")[0]
    printed = PAGE.partition(program)[2].partition("```text\n")[2].partition("```")[0]
    exec(compile(program, "sampling.md", "exec"), {})
    assert capsys.readouterr().out == printed
