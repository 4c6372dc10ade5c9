"""A small recipe in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipe import RECIPE


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("my.toml")
    path.write_text(RECIPE, encoding="utf-8")
    return path
