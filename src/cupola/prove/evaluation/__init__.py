"""Evaluation: samples of one model, or of a base and its trained successor, to estimates and a verdict.

`choose_temperature` on dev questions, then `summarise` on test questions, then `table`.
"""

from cupola.prove.evaluation.samples import choose_temperature, mode_of, temperature_of
from cupola.prove.evaluation.summary import summarise
from cupola.prove.evaluation.text import percent, points, table

__all__ = ["choose_temperature", "mode_of", "percent", "points", "summarise", "table", "temperature_of"]
