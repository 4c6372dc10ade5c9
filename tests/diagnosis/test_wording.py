"""Every finding has its texts and its page, and neither drifts from the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from cupola.core.catalogue import ENGLISH, TABLES, wording
from cupola.watch.diagnosis import DETECTORS

PAGES = Path(__file__).parents[2] / "docs" / "findings"


def module(name: str) -> ModuleType:
    return importlib.import_module(f"cupola.watch.diagnosis.detectors.{name}")


def source(name: str) -> str:
    return Path(str(module(name).__file__)).read_text(encoding="utf-8")


def readings(name: str) -> list[str]:
    return [entry.partition(".")[2] for entry in ENGLISH if entry.partition(".")[0] == name]


def test_a_finding_in_words() -> None:
    values = {"correct_key": "correct/mean", "correct_first": 0.16, "correct_last": 0.064,
              "form_key": "rewards/form/mean", "form_first": 0.476, "form_last": 0.857}  # fmt: skip
    text = wording("format_up_correctness_down", values, (1, 20))
    assert text.see == (
        "rewards/form/mean rose from 0.476 to 0.857, while correct/mean fell from 0.16 to 0.064 (steps 1 to 20). "
        "The total reward hides this."
    )


def test_undefined_is_said_and_not_printed_as_a_number() -> None:
    text = wording("loss_zero_benign", {"loss": 0.0, "grad_norm": None}, [0, 5])
    assert text.see == "The loss is about 0 (steps 0 to 5) and the gradient norm is not recorded."


@pytest.mark.parametrize(("name", "language"), [("learning", "xx"), ("no_such_finding", "en")])
def test_the_unknown_is_an_error(name: str, language: str) -> None:
    with pytest.raises(KeyError):
        wording(name, {}, (0, 1), language)


def test_the_catalogue_covers_the_table_and_no_more() -> None:
    assert {entry.partition(".")[0] for entry in ENGLISH} == set(DETECTORS)
    assert all(set(table) == set(ENGLISH) for table in TABLES.values())


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_texts_use_values_that_the_detector_gives(name: str) -> None:
    given = set(re.findall(r'"(\w+)": ', source(name))) | set(re.findall(r'values\["(\w+)"\]', source(name)))
    for entry, template in ENGLISH.items():
        if entry.partition(".")[0] == name:
            used = set(re.findall(r"\{(\w+)", " ".join(vars(template).values())))
            assert used <= given | {"since", "until"}


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_each_reading_is_in_the_code_and_on_the_page(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for reading in filter(None, readings(name)):
        assert f'"{reading}"' in source(name)
        assert f"`{reading}`" in page


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_the_page_states_the_thresholds(name: str) -> None:
    page = " ".join((PAGES / f"{name}.md").read_text(encoding="utf-8").split())
    shared = {key for key in vars(module(name)) if f"{key} = " not in source(name)}
    for key, value in vars(module(name)).items():
        if key.isupper() and key not in shared and key != "FULL":
            assert f"`{key}` {value:g}" in page


def test_the_table_lists_every_page() -> None:
    table = (PAGES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]", table, re.M)) == sorted(DETECTORS)
