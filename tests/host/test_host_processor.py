"""Processors as Linux describes them."""

from __future__ import annotations

import pytest

from cutaway.host import processor

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9B14
flags\t\t: fpu avx2 avx512_vnni

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("text", "name", "features", "is_amd"),
    [
        (X86, "AMD EPYC 9B14", {"fpu", "avx2", "avx512_vnni"}, True),
        (X86.replace("AuthenticAMD", "GenuineIntel"), "AMD EPYC 9B14", {"fpu"}, False),
        (ARM, None, {"fp", "asimd"}, False),
        ("", None, set(), False),
    ],
)
def test_of_the_first_core(
    monkeypatch: pytest.MonkeyPatch, text: str, name: str | None, features: set[str], is_amd: bool
) -> None:
    monkeypatch.setattr(processor, "read_fields", lambda: processor.parse(text))
    assert processor.model_name() == name
    assert processor.features() >= features
    assert processor.is_amd() is is_amd
