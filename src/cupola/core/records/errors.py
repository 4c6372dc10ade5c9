"""The error tree. Each error's text is one line that names the file, key or row and says what to do."""

from __future__ import annotations


class CupolaError(Exception):
    """Anything cupola refuses to do; the command line prints its text and exits with `exit_code`."""

    exit_code = 1


class RecipeError(CupolaError, ValueError):
    """A recipe or command line that cannot be carried out: unknown key, wrong type, contradiction."""

    exit_code = 2


class DataError(CupolaError, ValueError):
    """A dataset or a row of it that cannot be used."""


class ModelError(CupolaError, ValueError):
    """A model or tokenizer that cannot be loaded, or that cannot do what the recipe asks."""


class RewardError(CupolaError, ValueError):
    """A reward function that raised, or returned the wrong number of values or values that are no number."""


class RunFolderError(CupolaError, OSError):
    """A run folder that exists, is missing, is not one, or cannot be written."""


class RankError(CupolaError, RuntimeError):
    """Another rank of a distributed run that has ended or does not answer."""


class NumericalError(CupolaError, ArithmeticError):
    """A loss or gradient that is not finite: the update was refused before it touched the weights."""


class SamplerError(CupolaError, RuntimeError):
    """A sampler that does not answer, answers what cannot be used, or holds other weights than it should."""
