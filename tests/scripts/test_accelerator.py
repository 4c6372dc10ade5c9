"""The accelerator's checks run on a CPU: every figure within its bound, and what is wrong is named."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cupola.train.models import EMBEDDED, pad

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "accelerator.py"


@pytest.fixture(scope="module")
def accelerator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accelerator", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["accelerator"] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a server that answers as vLLM does, and holds the embedded policy."""
    command = [sys.executable, str(ROOT / "tests" / "rollout" / "fake_vllm.py"), str(EMBEDDED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def run(*options: str) -> tuple[int, list[str], dict[str, Any]]:
    """Exit code, the table's lines and the JSON line."""
    command = [sys.executable, str(SCRIPT), "--device", "cpu", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    *table, last = done.stdout.splitlines() or [done.stderr]
    return done.returncode, table, json.loads(last)


@pytest.mark.slow
def test_every_figure_is_within_its_bound(accelerator: ModuleType, served: str) -> None:
    code, table, found = run("--model", "embedded", "--vllm", served)
    assert code == 0, table
    assert {row["check"] for row in found["checks"]} == accelerator.CHECKS.keys()
    for row in found["checks"]:
        assert math.isfinite(row["value"]), row
        assert row["state"] == ("measured" if row["most"] is None else "pass"), row
        assert row["most"] is None or row["value"] <= row["most"], row
    assert found["counts"]["pass"] == 8 + 3 + 3 + 4 + 3 + 1 + 2 + 2
    assert (found["counts"]["fail"], found["counts"]["not run"]) == (0, 0)
    assert (found["device"], found["name"]) == ("cpu", None)
    assert found["versions"]["torch"] == torch.__version__
    assert len(table) == len(found["checks"]) + 1


@pytest.mark.slow
def test_a_check_that_fails_is_named_and_the_others_go_on() -> None:
    code, table, found = run("--model", "nowhere", "--model", "embedded", "--only", "receipts", "vllm")
    assert code == 1
    first, *others, last = found["checks"]
    assert (first["check"], first["model"], first["state"]) == ("receipts", "nowhere", "fail")
    assert first["figure"].startswith("ModelError: nowhere: ")
    assert {(row["model"], row["state"]) for row in others} == {("embedded", "pass")}
    assert (last["check"], last["state"], last["figure"]) == ("vllm", "not run", "no --vllm URL was given")
    assert table[-1] == "3 pass, 1 fail, 0 measured, 1 not run"


def embedded(accelerator: ModuleType) -> Any:
    return accelerator.Case("embedded", torch.device("cpu"), {"url": None})


def test_padding_that_counts_is_found(accelerator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns that the check adds are read as tokens of the prompt."""

    def read_as_tokens(*rows: Any) -> Any:
        made = pad(*rows)
        return replace(made, prompt_mask=torch.ones_like(made.prompt_mask))

    monkeypatch.setattr(accelerator.models, "pad", read_as_tokens)
    monkeypatch.setattr(accelerator, "PRESETS", [accelerator.GRPO])
    rows = accelerator.run([("gradient", embedded(accelerator))], time.perf_counter() + 60)
    assert [row["state"] for row in rows] == ["fail", "fail"]
    assert all(row["value"] > 0.01 for row in rows)


def test_what_hangs_fails_and_the_rest_is_not_run(accelerator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hangs(case: object) -> Iterator[tuple[str, float, float]]:
        yield "before", 1.0, 2.0
        yield "no number", math.nan, 2.0
        go_on.wait(60)

    monkeypatch.setitem(accelerator.CHECKS, "hangs", hangs)
    case = embedded(accelerator)
    rows = accelerator.run([("hangs", case), ("device", case)], time.perf_counter() + 0.5)
    go_on.set()
    assert [(row["check"], row["state"], row["value"]) for row in rows] == [
        ("hangs", "pass", 1.0),
        ("hangs", "fail", None),
        ("hangs", "fail", None),
        ("device", "not run", None),
    ]


def test_nothing_is_begun_when_the_time_is_up(accelerator: ModuleType) -> None:
    rows = accelerator.run([("device", embedded(accelerator))], time.perf_counter())
    assert [(row["figure"], row["state"]) for row in rows] == [("the time was up", "not run")]
