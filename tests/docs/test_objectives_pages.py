"""The pages on objectives say what the presets and surrogates are, their recipes load, and the figures are current."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cupola.core.config import Objective, validate
from cupola.core.config.presets import OWN
from cupola.core.config.presets.compatibility import COMPATIBLE
from cupola.core.config.surrogate import ANY_RATIO
from cupola.core.config.surrogate import SURROGATES as TABLES
from cupola.train.objectives import RULES, SURROGATES

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "objectives").glob("*.md"))}
FIGURES = ROOT / "docs" / "images" / "objectives"
BAR = re.compile(r"(?<!\\)\|")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def rows(page: str, cells: int) -> dict[str, str]:
    """The rows of a page's tables with so many cells whose first is in backquotes, by that name; links fall away."""
    plain = re.sub(r"\[(`\w+`)\]\(\w+\.md\)", r"\1", PAGES[page])
    found = [line for line in plain.splitlines() if line.startswith("| `") and len(BAR.findall(line)) == cells + 1]
    return {line.split("`")[1]: line for line in found}


#: What a preset's row names in columns of their own.
COLUMNS = {"baseline", "scale", "ratio", "surrogate", "denominator", "beta", "kl_estimator", "kl_in"}


def decisions(name: str) -> str:
    """A preset's row: its five decisions, its KL term, and whatever else it sets."""
    preset = OWN[name]
    surrogate = with_constants(preset["surrogate"])
    where = preset.get("kl_in", "loss")
    estimator = preset["kl_estimator"] if where == "loss" and preset["beta"] else "k1"  # of a KL in the reward
    kl = f"`{estimator}` {preset['beta']:g}{'' if where == 'loss' else f' in `{where}`'}" if preset["beta"] else "none"
    further = ", ".join(f"`{key}` {told(value)}" for key, value in preset.items() if key not in COLUMNS) or "none"
    parts = [f"`{each}`" for each in (name, preset["baseline"], preset["scale"], preset["ratio"])]
    return "| " + " | ".join([*parts, surrogate, f"`{preset['denominator']}`", kl, further]) + " |"


def told(value: Any) -> str:
    """A value, or a table's with the names of its keys."""
    return ", ".join(f"{key} {told(each)}" for key, each in value.items()) if isinstance(value, dict) else str(value)


def with_constants(surrogate: Mapping[str, Any]) -> str:
    constants = ", ".join(f"{key} {value:g}" for key, value in surrogate.items() if key != "kind")
    return f"`{surrogate['kind']}` {constants}".rstrip()


def compared(name: str) -> str:
    """A compatibility preset's row: what it takes from the other trainer, defaults of ours included."""
    objective = Objective(preset=name)
    scale = f"`{objective.scale}`" + (f" + {objective.scale_epsilon:g}" if objective.scale != "none" else "")
    counted = f"`{objective.scope}`, `{objective.count}`" + ("" if objective.count_dead else ", without dead groups")
    entropy = f"`{objective.entropy_denominator}` by `{objective.entropy_scope}`"
    kl = f"`{objective.kl_estimator}`{' weighted' if objective.kl_ratio != 'none' else ''}, {objective.beta:g}"
    where = "" if objective.kl_in == "loss" else f" in `{objective.kl_in}`"
    parts = [
        f"`{name}`",
        scale,
        with_constants(COMPATIBLE[name]["surrogate"]),
        f"`{objective.denominator}`",
        counted,
        entropy if objective.entropy_denominator else "as the policy",
        kl + where,
    ]
    return "| " + " | ".join(parts) + " |"


def described(kind: str) -> str:
    """A surrogate's row: its default constants, the ratio levels it goes with, and the presets that have it."""
    table = TABLES[kind]
    constants = ", ".join(f"`{key}` {value:g}" for key, value in table().model_dump(exclude={"kind"}).items())
    levels = "any but `none`" if table.levels == ANY_RATIO else ", ".join(f"`{level}`" for level in table.levels)
    presets = ", ".join(f"`{name}`" for name, preset in OWN.items() if preset["surrogate"]["kind"] == kind)
    return f"| `{kind}` | {constants or 'none'} | {levels} | {presets or 'none'} |"


def test_the_overview_has_every_preset_with_its_decisions() -> None:
    assert rows("README.md", 8) == {name: decisions(name) for name in OWN}


def test_each_preset_has_a_page_with_its_decisions() -> None:
    pages = [rows(page, 8) for page in PAGES if page != "README.md"]
    found = [row for page in pages for row in page.items()]
    assert sorted(found) == sorted((name, decisions(name)) for name in OWN)


def test_the_compatibility_presets_have_a_page() -> None:
    assert rows("compatibility.md", 7) == {name: compared(name) for name in COMPATIBLE}


def test_every_surrogate_is_described() -> None:
    assert rows("surrogates.md", 4) == {kind: described(kind) for kind in TABLES}


def test_surrogates_without_a_preset_have_a_section() -> None:
    with_preset = {preset["surrogate"]["kind"] for preset in OWN.values()}
    assert re.findall(r"^## (\w+)$", PAGES["surrogates.md"], re.M) == [k for k in TABLES if k not in with_preset]


def test_the_overview_has_every_denominator() -> None:
    assert set(rows("README.md", 3)) == set(RULES)


@pytest.mark.parametrize("page", PAGES)
def test_every_recipe_on_a_page_loads(page: str) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGES[page], re.S)
    assert len(blocks) == 1
    table = tomllib.loads(blocks[0])
    assert set(table) == {"objective"}
    own = rows(page, 8)
    objective = validate(table["objective"], Objective, at="objective")
    assert not own or objective.preset in own


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", PAGES[page])
    assert targets
    missing = [target for target in targets if not (ROOT / "docs" / "objectives" / target).exists()]
    assert missing == []


@pytest.mark.parametrize("kind", SURROGATES)
def test_every_figure_is_shown(kind: str) -> None:
    assert any(f"](../images/objectives/{kind}.svg)" in text for text in PAGES.values())


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("surrogate_figures", ROOT / "scripts" / "surrogate_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_no_other_figure() -> None:
    assert {path.stem for path in FIGURES.iterdir()} == set(SURROGATES)


@pytest.mark.parametrize("kind", SURROGATES)
def test_the_figure_is_what_the_script_draws(figures: ModuleType, kind: str) -> None:
    """The same text, and every number within the rounding to a tenth of a pixel: exp differs between machines."""
    kept, drawn = (FIGURES / f"{kind}.svg").read_text(encoding="utf-8"), figures.figure(kind)
    assert NUMBER.sub("#", kept) == NUMBER.sub("#", drawn)
    assert list(map(float, NUMBER.findall(kept))) == pytest.approx(list(map(float, NUMBER.findall(drawn))), abs=0.11)


def test_the_drawn_curves_are_the_formulas(figures: ModuleType) -> None:
    """PPO's clip by hand: flat with slope 0 beyond 1.2 where A = +1 and below 0.8 where A = -1, else -A rho."""
    ratio, loss, slope = figures.curves("clipped", 1.0)
    assert torch.allclose(loss, -ratio.clamp(max=1.2))
    # A point on the bound itself may fall on either side by rounding.
    away = (ratio - 1.2).abs() > 1e-9
    assert torch.allclose(slope[away], torch.where(ratio < 1.2, -ratio, 0.0)[away])
    ratio, loss, slope = figures.curves("clipped", -1.0)
    assert torch.allclose(loss, ratio.clamp(min=0.8))
    away = (ratio - 0.8).abs() > 1e-9
    assert torch.allclose(slope[away], torch.where(ratio > 0.8, ratio, 0.0)[away])


def test_main_writes_every_figure(figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "OUT", tmp_path / "new")
    figures.main()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"{kind}.svg" for kind in SURROGATES}
