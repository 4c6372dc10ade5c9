"""Typed reading of another trainer's configuration: defaults filled in and marked, faults in one line."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.config.section import MOST
from cupola.core.records import RecipeError

#: Similarity from which a name is a slip: `ppo_micro_batch_size` is no `ppo_mini_batch_size` (0.87).
NEAR = 0.9

KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    list: "a list of two numbers",
}


@dataclass(frozen=True)
class Key:
    """One key that bears on a denominator.

    `default` is the trainer's own, and where it is `None`, or `absent` is set, the value may be null; `types` are those
    of a value; `choices` are all its values, `least` its smallest.
    """

    default: Any
    types: tuple[type, ...]
    choices: Collection[object] | None = None
    least: float | None = None
    absent: bool = False


def count(default: int | None) -> Key:
    """A whole number of at least 1."""
    return Key(default, (int,), least=1)


def real(default: float | None, least: float = 0.0) -> Key:
    """A finite number of at least `least`."""
    return Key(default, (float,), least=least)


def flag(default: bool) -> Key:
    """True or false."""
    return Key(default, (bool,))


def pair(default: list[float] | None) -> Key:
    """A list of two numbers."""
    return Key(default, (list,))


def text(default: str, choices: Collection[object] | None = None) -> Key:
    """A name, one of `choices` where they are given."""
    return Key(default, (str,), choices)


@dataclass(frozen=True)
class Read:
    """The values of the keys asked for, with where each came from (`file` or `default`), and the keys not read."""

    values: dict[str, Any]
    origins: dict[str, str]
    ignored: list[str]

    def record(self) -> dict[str, dict[str, Any]]:
        """Each key's value and origin."""
        return {key: {"value": value, "from": self.origins[key]} for key, value in self.values.items()}


def read(place: str, table: Mapping[str, Any], keys: Mapping[str, Key]) -> Read:
    """Read `keys` from a configuration that may be nested, dotted or both; `place` names the file.

    Raises RecipeError naming file and key for a value of the wrong type, an unknown name, a number too small, a key
    that stands there twice, and for a file that has none of the keys.
    """
    found: dict[str, Any] = {}
    for name, value in _flat(table):
        if name in found:
            raise RecipeError(f"{place}: {name}: stands there twice; keep one")
        found[name] = value
    given = [name for name in keys if name in found]
    if not given:
        few = ", ".join(list(keys)[:4])
        raise RecipeError(f"{place}: has none of the keys that bear on a denominator, such as {few}")
    for name in found:
        near = None if name in keys else next((key for key in keys if _a_slip(name, key)), None)
        if near is not None:
            raise RecipeError(f"{place}: {name}: unknown key; did you mean {near}?")
    values = {name: _checked(place, name, found.get(name, key.default), key) for name, key in keys.items()}
    origins = {name: "file" if name in found else "default" for name in keys}
    return Read(values, origins, [name for name in found if name not in keys])


def _a_slip(name: str, key: str) -> bool:
    """Whether `name` is `key` mistyped: each dotted part is nearly its own, for whole keys share most of their text."""
    pairs = list(itertools.zip_longest(name.split("."), key.split("."), fillvalue=""))
    return all(difflib.SequenceMatcher(None, *pair).ratio() >= NEAR for pair in pairs)


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _checked(place: str, name: str, value: Any, key: Key) -> Any:
    if value is None and (key.default is None or key.absent):
        return None
    if isinstance(value, str) and value.startswith("${"):
        raise RecipeError(
            f"{place}: {name}: {value:.80} is not resolved; write the configuration as the trainer saw it"
        )
    if type(value) in (int, float) and abs(value) > MOST:
        raise RecipeError(f"{place}: {name}: no size or constant is beyond {MOST:g}, got {value!s:.80}")
    if float in key.types and type(value) is int:
        value = float(value)
    if not _fits(value, key.types):
        raise RecipeError(
            f"{place}: {name}: should be {' or '.join(KINDS[each] for each in key.types)}, got {value!r:.80}"
        )
    if key.choices is not None and value not in key.choices:
        raise RecipeError(f"{place}: {name}: should be one of {', '.join(map(str, key.choices))}, got {value!r:.80}")
    if key.least is not None and value < key.least:
        raise RecipeError(f"{place}: {name}: should be at least {key.least:g}, got {value!r:.80}")
    return value


def _fits(value: Any, types: Sequence[type]) -> bool:
    if type(value) not in types:  # not isinstance: true is no whole number
        return False
    if isinstance(value, list):
        return len(value) == 2 and all(type(each) in (int, float) and math.isfinite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)
