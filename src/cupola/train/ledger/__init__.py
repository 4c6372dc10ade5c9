"""The ledger: every denominator in formula, number and words. Explains from counts; torch is not needed."""

from cupola.train.ledger import described, openrlhf, trl, verl
from cupola.train.ledger.averages import AVERAGES, COUNTED, SUPERVISED, TIES, Measure, legend
from cupola.train.ledger.constants import paper_notices
from cupola.train.ledger.explained import Denominator, Explanation, cancelled, with_numbers
from cupola.train.ledger.numerators import numerator_words
from cupola.train.ledger.recipe import explain_supervised, explain_training
from cupola.train.ledger.rows import Weighted, ledger_row, scale_row, scoped_row, shares, whitening_row
from cupola.train.ledger.rules import RULES, SCALES, WHITENINGS, weight

#: Other trainers' configurations, and any loop's description, explained: `TRAINERS[name](file, table)`.
TRAINERS = {"trl": trl.explain, "verl": verl.explain, "openrlhf": openrlhf.explain, "loop": described.explain}

__all__ = [
    "AVERAGES",
    "COUNTED",
    "RULES",
    "SCALES",
    "SUPERVISED",
    "TIES",
    "TRAINERS",
    "WHITENINGS",
    "Denominator",
    "Explanation",
    "Measure",
    "Weighted",
    "cancelled",
    "explain_supervised",
    "explain_training",
    "ledger_row",
    "legend",
    "numerator_words",
    "paper_notices",
    "scale_row",
    "scoped_row",
    "shares",
    "weight",
    "whitening_row",
    "with_numbers",
]
