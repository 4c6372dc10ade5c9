"""Text to verdict: rules of our own, the user's reward functions, and the sum of a recipe's parts. No torch."""

from cupola.train.verifiers.numeric import read_number
from cupola.train.verifiers.parts import Scorer, build, gold_reader, total
from cupola.train.verifiers.rules import MAX_CHARS

__all__ = ["MAX_CHARS", "Scorer", "build", "gold_reader", "read_number", "total"]
