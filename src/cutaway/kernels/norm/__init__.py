"""Normalization of hidden vectors."""

from cutaway.kernels.norm.plain import layer_norm, offset_rms_norm, rms_norm, wide_rms_norm

__all__ = ["layer_norm", "offset_rms_norm", "rms_norm", "wide_rms_norm"]
