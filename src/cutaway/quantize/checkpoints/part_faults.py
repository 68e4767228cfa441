"""Faults of tensors that should make up one matrix and contradict each other."""

from __future__ import annotations

from cutaway.core.errors import ModelFormatError
from cutaway.quantize.scheme import StoredParts


def check_shape(stored: StoredParts, part: str, num_dims: int) -> tuple[int, ...]:
    """The shape of a part. Raises: ModelFormatError unless it has so many dimensions."""
    shape = stored.shape(part)
    if len(shape) != num_dims or min(shape, default=1) < 1:
        raise contradiction(stored, part, f"{num_dims} dimensions")
    return shape


def contradiction(stored: StoredParts, part: str, wanted: object) -> ModelFormatError:
    """What to raise for a part that does not fit the others and the settings."""
    return ModelFormatError(
        f"has shape {stored.shape(part)}, but the other parts of this matrix and "
        f"quantization_config ask for {wanted}.",
        file=stored.file,
        field=f"{stored.module}.{part}",
    )
