"""Matrix product with a stored weight."""

from cutaway.kernels.linear.plain import linear

__all__ = ["linear"]
