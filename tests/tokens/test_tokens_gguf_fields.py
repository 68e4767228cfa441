"""Ids in GGUF files that stand for no token."""

from __future__ import annotations

import pytest

from cutaway.core.errors import ModelFormatError
from cutaway.tokens.files.gguf_fields import GgufFields


def fields(name: str, value: object) -> GgufFields:
    return GgufFields({f"tokenizer.ggml.{name}": value}, "a.gguf")


@pytest.mark.parametrize("role", ["padding", "unknown", "bos", "eos"])
@pytest.mark.parametrize("value", [2**32 - 1, -1])
def test_n13_all_bits_set_is_no_token(role: str, value: int) -> None:
    name = f"{role}_token_id"
    assert fields(name, value).token_id(name, 10) is None
    assert fields(name, value).control_ids(10) == set() and fields(name, value).end_ids(10) == []


@pytest.mark.parametrize("value", [10, -2, 2**32 - 2, True, "1", 1.0])
def test_other_ids_that_no_token_has_are_faults(value: object) -> None:
    with pytest.raises(ModelFormatError, match="must be a token id from 0 to 9"):
        fields("padding_token_id", value).token_id("padding_token_id", 10)
