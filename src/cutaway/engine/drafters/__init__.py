"""Guesses of the next tokens, which one step then verifies together."""

from cutaway.engine.drafters.drafter import Drafter
from cutaway.engine.drafters.ngram import NGramDrafter

__all__ = ["Drafter", "NGramDrafter"]
