"""A number by which two rows of logits can be told apart."""

from cutaway.kernels.checksum.plain import checksum

__all__ = ["checksum"]
