"""Text to verdict: rules of our own, the user's reward functions, and the sum of a recipe's parts. No torch."""

from cupola.train.verifiers.functions import TrainerState
from cupola.train.verifiers.numeric import read_number
from cupola.train.verifiers.parts import Scorer, build, readable_gold, total
from cupola.train.verifiers.rules import MAX_CHARS

__all__ = ["MAX_CHARS", "Scorer", "TrainerState", "build", "read_number", "readable_gold", "total"]
