"""The gated delta rule: a state that each token decays, corrects and reads."""

from cutaway.kernels.delta.plain import delta_rule, short_convolution, unit_rows

__all__ = ["delta_rule", "short_convolution", "unit_rows"]
