"""The ledger: every denominator in formula, number and words. Explains from counts; torch is not needed."""

from cupola.train.ledger import openrlhf, trl, verl
from cupola.train.ledger.explained import Denominator, Explanation, cancelled, clip_notices, paired, with_numbers
from cupola.train.ledger.rows import Weighted, ledger_row, scale_row, shares, whitening_row
from cupola.train.ledger.rules import RULES, SCALES, WHITENINGS, weight

#: Other trainers' configurations explained: `TRAINERS[name](file, table)`.
TRAINERS = {"trl": trl.explain, "verl": verl.explain, "openrlhf": openrlhf.explain}

__all__ = [
    "RULES",
    "SCALES",
    "WHITENINGS",
    "TRAINERS",
    "Denominator",
    "Explanation",
    "Weighted",
    "cancelled",
    "clip_notices",
    "ledger_row",
    "paired",
    "scale_row",
    "shares",
    "weight",
    "whitening_row",
    "with_numbers",
]
