"""Truths of a few architectures under the instruction sets that torch would not take here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SETS = ("DEFAULT", "AVX2", "AVX512")
HERE = torch.backends.cpu.get_cpu_capability()
OTHERS = SETS[: SETS.index(HERE)] if HERE in SETS else ()
# Experts with sinks, states behind a convolution, a gate in attention: where places differ most.
CASES = "every_kind and (gpt-oss-flags or qwen3-next-flags) and cpu"


@pytest.mark.slow
@pytest.mark.parametrize("instructions", OTHERS)
def test_every_kind_of_run_is_exact_under_other_instruction_sets(instructions: str) -> None:
    file = Path(__file__).with_name("test_models_architectures.py")
    apart = ("-p", "no:cacheprovider", "-p", "no:xdist")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *apart, str(file), "-k", CASES],
        env=os.environ | {"ATEN_CPU_CAPABILITY": instructions.lower()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert " passed" in ran.stdout and "failed" not in ran.stdout
