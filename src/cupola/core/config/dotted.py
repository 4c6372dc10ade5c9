"""Nested tables by dotted key, as a recipe's values are named everywhere; `reward.0` is the first of a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key below `key` with its value, the tables themselves included."""
    yield key, value
    for name, part in inner(value):
        yield from walk(part, f"{key}.{name}" if key else name)


def leaves(value: Any, key: str = "") -> dict[str, Any]:
    """The values that hold no others, by their dotted keys."""
    return {name: part for name, part in walk(value, key) if not inner(part)}


def inner(value: Any) -> list[tuple[str, Any]]:
    """What a table or a list of tables holds, by name or number; nothing of any other value."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return [(str(index), each) for index, each in enumerate(value)]
    return []
