"""Every finding has its texts and its page, and neither drifts from the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from cases import CASES, named

from cupola.core.catalogue import ENGLISH, TABLES, wording
from cupola.watch.diagnosis import DETECTORS, signals, trend

PAGES = Path(__file__).parents[2] / "docs" / "findings"


def test_a_finding_in_words() -> None:
    values = {"correct_key": "correct/mean", "correct_first": 0.16, "correct_last": 0.064,
              "form_key": "rewards/form/mean", "form_first": 0.476, "form_last": 0.857}  # fmt: skip
    text = wording("format_up_correctness_down", values, (1, 20))
    assert text.see == (
        "rewards/form/mean rose from 0.476 to 0.857, while correct/mean fell from 0.16 to 0.064 (steps 1 to 20). "
        "The total reward hides this."
    )


def test_a_part_without_its_value_is_left_out() -> None:
    values = {"reading": "all_wrong", "share": 1.0, "wrong": 1.0, "right": 0.0, "wasted": 1.0, "group_size": 8}
    told = wording("dead_groups_taking_over", {**values, "loss": 0.1, "signal": 0.25, "no_signal": None}, (0, 5))
    assert told.see.endswith(" The loss (0.1) does not show it.")
    assert told.means.endswith(" The run learns from the rest alone: 25.0% of the groups.")
    silent = wording("dead_groups_taking_over", {**values, "loss": None, "signal": None, "no_signal": 0.0}, (0, 5))
    assert "loss" not in silent.see
    assert silent.means.endswith(" Nothing is learned: 0% of the groups have signal.")


def test_undefined_is_said_and_not_printed_as_a_number() -> None:
    text = wording("loss_zero_benign", {"loss": 0.0, "grad_norm": None}, [0, 5])
    assert text.see == "The loss is about 0 (steps 0 to 5) and the gradient norm is not recorded."
    assert "one update per batch" not in text.means  # nor is it said of the run how many it makes


@pytest.mark.parametrize(("name", "language"), [("learning", "xx"), ("no_such_finding", "en")])
def test_the_unknown_is_an_error(name: str, language: str) -> None:
    with pytest.raises(KeyError):
        wording(name, {}, (0, 1), language)


def test_the_catalogue_covers_the_table_and_no_more() -> None:
    assert {entry.partition(".")[0] for entry in ENGLISH} == set(DETECTORS)
    assert all(set(table) == set(ENGLISH) for table in TABLES.values())


def test_every_text_is_spoken_of_some_series() -> None:
    assert set(CASES) == set(ENGLISH)


@pytest.mark.parametrize("entry", sorted(CASES))
def test_a_finding_is_put_in_words_and_its_reading_stands_on_its_page(entry: str) -> None:
    found = named(entry)
    words = wording(found.name, found.values, found.steps)
    assert words.title == ENGLISH[entry].title
    assert "{" not in "".join(vars(words).values())
    page = (PAGES / f"{found.name}.md").read_text(encoding="utf-8")
    assert "reading" not in found.values or f"`{found.values['reading']}`" in page


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_the_page_states_the_thresholds(name: str) -> None:
    page = " ".join((PAGES / f"{name}.md").read_text(encoding="utf-8").split())
    detector = importlib.import_module(f"cupola.watch.diagnosis.detectors.{name}")
    own = {key: value for key, value in vars(detector).items() if key.isupper() and not key.startswith("_")}
    for key, value in own.items():
        if not hasattr(trend, key) and not hasattr(signals, key):
            assert f"`{key}` {value:g}" in page


def test_the_table_lists_every_page() -> None:
    table = (PAGES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]", table, re.M)) == sorted(DETECTORS)
