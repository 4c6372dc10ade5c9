"""Whatever judges a run is imported, module by module, and torch stays out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

WINGS = ("core", "watch", "prove", "dashboard", "cli")
ROOMS = ("train.ledger", "train.rollout", "train.tasks", "train.verifiers")
USES = ("workflows.answers", "workflows.doctor")

SCRIPT = """
import importlib, pkgutil, sys
count = 0
for name in sys.argv[1:]:
    inside = getattr(importlib.import_module(name), "__path__", [])
    names = [module.name for module in pkgutil.walk_packages(inside, name + ".")]
    count += 1 + len(list(map(importlib.import_module, names)))
heavy = {"torch", "transformers", "tokenizers", "safetensors", "accelerate"} & set(sys.modules)
print(count, *sorted(heavy))
"""


def loaded_by(source: Path, *names: str) -> list[str]:
    """In a fresh process: how many modules these are, then which heavy libraries importing them loads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("room", [*WINGS, *ROOMS, *USES])
def test_a_torch_free_room_loads_no_torch(room: str) -> None:
    count, *heavy = loaded_by(SOURCE, f"cupola.{room}")
    assert int(count) > 0
    assert heavy == []


def test_a_room_with_torch_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").write_text("")
    (tmp_path / "planted" / "inner.py").write_text("import safetensors\n")
    assert loaded_by(tmp_path, "planted") == ["2", "safetensors"]
