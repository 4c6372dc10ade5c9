"""A validation error of pydantic as one line: where it stands, which key it is, what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from cupola.core.config.section import Misfit

#: pydantic's types of error for what should be a table and is none.
NO_TABLE = ("model_type", "model_attributes_type", "dict_type")


def told(error: ValidationError, kind: type[BaseModel], origin: Mapping[str, str], at: str) -> str:
    """The first fault of a `kind` that stands at the dotted key `at`; `origin` tells where a key stands.

    An unknown key goes first: it may be what a missing one was meant to be.
    """
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    key = ".".join(part for part in (at, *map(str, _path(first, kind))) if part)
    return ": ".join(part for part in (_place(key, origin), key, _fault(first, kind)) if part)


def _path(error: Any, model: type[BaseModel]) -> list[str | int]:
    """Where the fault is, without the kinds that pydantic puts into the path where tables are told apart by `kind`."""
    path: list[str | int] = []
    tables = [model]
    for part in error["loc"]:
        tagged = [table for table in tables if part in _kinds(table)] if len(tables) > 1 else []
        if tagged:
            tables = tagged
            continue
        path.append(part)
        if isinstance(part, str):
            fields = [table.model_fields[part] for table in tables if part in table.model_fields]
            tables = [inner for field in fields for inner in _tables(field.annotation)]
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path.append("kind")
    cause = error.get("ctx", {}).get("error")
    return [*path, cause.key] if isinstance(cause, Misfit) else path


def _kinds(table: type[BaseModel]) -> tuple[str, ...]:
    """The values of a table's `kind`; none where it has no such key."""
    return get_args(table.model_fields["kind"].annotation) if "kind" in table.model_fields else ()


def _place(key: str, origin: Mapping[str, str]) -> str:
    """Where a key stands, or else the nearest table around it."""
    while key and key not in origin:
        key = key.rpartition(".")[0]
    return origin.get(key, "")


def _fault(error: Any, kind: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        *section, name = (part for part in error["loc"] if not isinstance(part, int))
        return _unknown(tuple(section), name, list(_keys(kind)))
    if error["type"] in ("missing", "union_tag_not_found"):
        return "is missing"
    if error["type"] == "union_tag_invalid":
        return f"should be one of {error['ctx']['expected_tags']}, got {error['ctx']['tag']!r:.80}"
    if error["type"] in NO_TABLE:
        return f"is a table of keys, got {error['input']!r:.80}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    message = error["msg"]
    return f"{message[0].lower()}{message[1:]}, got {error['input']!r:.80}"


class Key(NamedTuple):
    """A key that a model knows: its table, the kind of the table where there are several, and its name."""

    table: tuple[str, ...]
    kind: tuple[str, ...]
    name: str


def _unknown(section: tuple[str, ...], name: str, known: Sequence[Key]) -> str:
    """What was meant: a near key of the section, or that key in another; else the section's keys."""
    siblings = [key for key in known if key.table + key.kind == section]
    named = [key for key in known if key.name == name]
    others = [repr(*key.kind) for key in named if key.table == siblings[0].table]
    if others:
        return f"unknown key of kind {section[-1]!r}; it belongs to kind {' and '.join(others)}"
    names = [key.name for key in siblings]
    near = difflib.get_close_matches(name, names, n=1) or [".".join((*key.table, name)) for key in named]
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; there are {', '.join(names)}"


def _keys(model: type[BaseModel], table: tuple[str, ...] = (), kind: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key of a model and of the tables in it."""
    for name, field in model.model_fields.items():
        yield Key(table, kind, name)
        tables = list(_tables(field.annotation))
        for inner in tables:
            yield from _keys(inner, (*table, name), _kinds(inner) if len(tables) > 1 else ())


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables(inner)
