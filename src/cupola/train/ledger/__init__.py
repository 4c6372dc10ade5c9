"""The ledger: every denominator in formula, number and words. Explains from counts; torch is not needed."""

from cupola.train.ledger.rows import Weighted, ledger_row, scale_row, shares, whitening_row
from cupola.train.ledger.rules import RULES, SCALES, WHITENINGS, weight

__all__ = [
    "RULES",
    "SCALES",
    "WHITENINGS",
    "Weighted",
    "ledger_row",
    "scale_row",
    "shares",
    "weight",
    "whitening_row",
]
