"""Matrix products in which each row goes to a matrix of its own choice."""

from cutaway.kernels.experts.plain import TILE, Chosen, grouped_linear, sort_by_expert, tiled_linear

__all__ = ["TILE", "Chosen", "grouped_linear", "sort_by_expert", "tiled_linear"]
