"""Rows of a .jsonl, .parquet or .csv file, each with the place a person finds it at (1-based)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cupola.core.records import DataError

#: A place (`train.csv: line 3`) and the row's columns.
Row = tuple[str, dict[str, Any]]


def read_rows(path: Path) -> list[Row]:
    """All rows. Raises DataError: missing file, unknown extension, no rows, or a row that cannot be read."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown extension {path.suffix!r}; give a {', '.join(READERS)} file")
    if not path.is_file():
        raise DataError(f"{path}: no such file{'' if path.is_absolute() else f' (looked in {Path.cwd()})'}")
    try:
        rows = list(reader(path))
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return rows


def _jsonl(path: Path) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}: line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{place}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f'{place}: a row is an object such as {{"prompt": ...}}, got {type(row).__name__}')
            yield place, row


def _csv(path: Path) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _refuse_repeats(path, header)
        start = reader.line_num + 1
        for fields in reader:
            place, start = f"{path}: line {start}", reader.line_num + 1
            if not fields:
                continue
            if len(fields) != len(header):
                raise DataError(f"{place}: {len(fields)} fields, but the header has {len(header)}")
            yield place, dict(zip(header, fields, strict=True))


def _parquet(path: Path) -> Iterator[Row]:
    file = pq.ParquetFile(path)
    _refuse_repeats(path, file.schema_arrow.names)
    for number, row in enumerate(file.read().to_pylist(), 1):
        yield f"{path}: row {number}", row


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {".jsonl": _jsonl, ".parquet": _parquet, ".csv": _csv}


def _refuse_repeats(path: Path, header: Sequence[str]) -> None:
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} stands there twice")
