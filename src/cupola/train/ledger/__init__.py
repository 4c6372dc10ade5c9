"""The ledger: every denominator in formula, number and words. Explains from counts; torch is not needed."""

from cupola.train.ledger.rows import Weighted, ledger_row, scale_row, shares
from cupola.train.ledger.rules import RULES, SCALES, weight

__all__ = ["RULES", "SCALES", "Weighted", "ledger_row", "scale_row", "shares", "weight"]
