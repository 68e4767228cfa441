"""Rotation of query and key pairs by position."""

from cutaway.kernels.rotary.plain import rotate, rotate_neighbours

__all__ = ["rotate", "rotate_neighbours"]
