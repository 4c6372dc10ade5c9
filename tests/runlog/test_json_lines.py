"""Append-only files: torn and broken lines, numbers that are none, and attempts that supersede."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import new_run

from cupola.core.records import Finding, Receipt, RunFolderError
from cupola.core.runlog import RunReader, RunWriter, append, read_jsonl


def test_reader_passes_over_a_torn_last_line_and_the_writer_cuts_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "text": "\xc3')
    assert read_jsonl(path) == [{"step": 1}]

    append(path, [{"step": 3}])

    assert path.read_bytes() == b'{"step": 1}\n{"step": 3}\n'


@pytest.mark.parametrize("torn", ["{", '{"a": 1', "12", '"x', "{}x"])
def test_a_file_that_is_one_torn_line_holds_no_row(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(torn, encoding="utf-8")
    assert read_jsonl(path) == []
    append(path, [{"step": 1}, {"step": 2}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none()), max_size=4), st.integers(0, 200))
def test_whatever_is_cut_off_the_end_the_whole_lines_stay(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "rows.jsonl"
    append(path, rows)
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept)
    survivors = read_jsonl(path)
    assert survivors == read_jsonl_text(whole)[: len(survivors)]
    assert len(survivors) >= kept.count(b"\n")

    append(path, [{"last": True}])
    assert read_jsonl(path) == [*survivors[: kept.count(b"\n")], {"last": True}]


def read_jsonl_text(data: bytes) -> list[object]:
    return [json.loads(line) for line in data.split(b"\n") if line]


@pytest.mark.parametrize(("line", "fault"), [("{", "Expecting property name"), ("[1]", "a JSON value of another kind")])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n\n{line}\n{{"step": 2}}\n', encoding="utf-8")
    with pytest.raises(RunFolderError, match=rf"^{path}:3: not a JSON object: {fault}"):
        read_jsonl(path)


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    row = {"a": math.nan, "b": [math.inf, 1], "c": {"d": -math.inf}, "e": np.float32(0.5), "f": np.int64(3), "g": None}
    append(path, [row, {"h": np.float64("nan")}])
    assert read_jsonl(path) == [{"a": None, "b": [None, 1], "c": {"d": None}, "e": 0.5, "f": 3, "g": None}, {"h": None}]


def test_a_lone_surrogate_is_written_escaped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, [{"text": "a\ud800b"}])
    assert read_jsonl(path) == [{"text": "a\ud800b"}]


def test_rows_of_an_overtaken_attempt_vanish_from_the_newer_ones_first_step_on(tmp_path: Path) -> None:
    first = new_run(tmp_path / "run")
    for step in (0, 1, 2, 3, 4):
        first.metrics(step, "train", {"reward": 0.0})
    second = RunWriter(first.layout, attempt=1)
    second.metrics(3, "train", {"reward": 1.0})
    reader = RunReader(first.layout.root)
    assert [(row["step"], row["attempt"]) for row in reader.metrics()] == [(0, 0), (1, 0), (2, 0), (3, 1)]

    second.metrics(4, "train", {"reward": 1.0})
    third = RunWriter(first.layout, attempt=2)
    third.metrics(4, "validation", {"reward": 2.0})
    assert [(row["step"], row["attempt"]) for row in reader.metrics()] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]
    assert [row["reward"] for row in reader.metrics("validation")] == [2.0]


def test_ledger_findings_and_receipts_are_read_back(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    writer.ledger(1, [{"term": "policy"}, {"term": "kl"}])
    writer.finding(1, Finding("learning", "info", (0, 1), {"rise": math.nan}))
    writer.receipt(1, Receipt(1, 83264, 0.5, "files", "ab", 1e-6, 0.02))
    reader = RunReader(writer.layout.root)
    assert [row["term"] for row in reader.ledger()] == ["policy", "kl"]
    found = reader.findings()[0]
    assert (found["name"], found["steps"], found["values"], found["attempt"]) == ("learning", [0, 1], {"rise": None}, 0)
    assert reader.receipts() == [
        {"step": 1, "attempt": 0, "version": 1, "parameters": 83264, "seconds": 0.5, "how": "files"}
        | {"digest": "ab", "difference": 1e-6, "moved": 0.02}
    ]
