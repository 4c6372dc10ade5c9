"""The ledger: every denominator in formula, number and words. Explains from counts; torch is not needed."""

from cupola.train.ledger.rows import Excluded, Weighted, ledger_row, shares
from cupola.train.ledger.rules import RULES, Rule, weight

__all__ = ["RULES", "Excluded", "Rule", "Weighted", "ledger_row", "shares", "weight"]
