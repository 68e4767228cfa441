"""Guesses of the next tokens, which one step then verifies together."""

from cutaway.engine.drafters.controller import Controller
from cutaway.engine.drafters.drafter import Draft, Drafter, GuessLimits, Wish
from cutaway.engine.drafters.guess_source import GuessSource, most_of
from cutaway.engine.drafters.ngram import NGramDrafter

__all__ = [
    "Controller",
    "Draft",
    "Drafter",
    "GuessLimits",
    "GuessSource",
    "NGramDrafter",
    "Wish",
    "most_of",
]
