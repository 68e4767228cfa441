"""The conversation of `cutaway chat`, in pieces that know no terminal and no model."""
