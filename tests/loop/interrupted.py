"""Runs that are cut off, and what they are compared with: the run of the same recipe that nothing interrupted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moments import Ended, cupola
from tiny_run import STEPS, plain, record, write_recipe

from cupola.core.runlog import RunReader
from cupola.watch.diagnosis import diagnose_run

#: What the recipe is trained with besides.
VARIANTS = {
    "plain": (),
    "keep": ("run.keep_rollouts=1", "validation.keep=1"),
    "ahead": (
        "sampling.one_step_off=true",
        "objective.correction.level=token",
        "optim.minibatches=1",
        "validation.every=3",
    ),
}


@dataclass(frozen=True)
class Straight:
    """An uninterrupted run: what it told, how often each kind of moment came, and its seconds."""

    told: dict[str, Any]
    counts: Counter[str]
    seconds: float


def uninterrupted(folder: Path, variant: str = "plain") -> Straight:
    started = time.monotonic()
    done = begun(folder, variant)
    assert (done.code, done.err) in ((0, ""), (3, "")), done  # 3: a finding
    return Straight(told(folder / "tiny"), done.counts, time.monotonic() - started)


def begun(folder: Path, variant: str = "plain", **keywords: Any) -> Ended:
    """The run of a variant, from its recipe."""
    return cupola(folder, "train", write_recipe(folder).name, *VARIANTS[variant], **keywords)


def gone_on(folder: Path, variant: str = "plain", **keywords: Any) -> Ended:
    """The run of a folder continued, or begun where there is none."""
    if (folder / "tiny").exists():
        return cupola(folder, "resume", "tiny", **keywords)
    return begun(folder, variant, **keywords)


def told(root: Path) -> dict[str, Any]:
    """The record with findings, and the names of all that stands in the folder."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    return {**record(root), "findings": plain(RunReader(root).findings()), "names": names}


def assert_reads(folder: Path, straight: Straight) -> None:
    """What has been recorded is the beginning of what the uninterrupted run recorded."""
    root, whole = folder / "tiny", straight.told
    if not root.exists():
        return
    reader = RunReader(root)
    assert reader.manifest()["state"] in ("running", "failed", "finished")
    found = {
        "metrics": reader.metrics(),
        "ledger": reader.ledger(),
        "receipts": reader.receipts(),
        "findings": reader.findings(),
    }
    for name, rows in found.items():
        assert plain(rows) == whole[name][: len(rows)], name
    prompts, steps = reader.prompts(), reader.rollout_steps()
    assert prompts.items() <= whole["prompts"].items()
    recorded = {row["step"] for row in reader.metrics()}
    assert recorded & whole["rollouts"].keys() <= set(steps)
    for step in steps:
        rows = reader.rollouts(step)
        assert step not in recorded or {row["prompt_id"] for row in rows} <= prompts.keys()
        assert plain(rows) == whole["rollouts"].get(step, plain(rows))
    diagnose_run(reader)


def assert_finishes(folder: Path, straight: Straight, variant: str = "plain") -> None:
    """Continued to its end, the run is the one that was not interrupted, and nothing else is left."""
    root = folder / "tiny"
    if root.exists() and RunReader(root).manifest()["state"] == "finished":  # cut off while it was judged
        assert f"finished: its last checkpoint is step {STEPS} of {STEPS}" in gone_on(folder, variant).err
        assert cupola(folder, "watch", "tiny").code == 0
    else:
        done = gone_on(folder, variant)
        assert (done.code, done.err) in ((0, ""), (3, "")), done
    assert RunReader(root).manifest()["state"] == "finished"
    found = told(root)
    for name, whole in straight.told.items():
        assert found[name] == whole, name
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"recipe.toml", "reward.py", "tiny"}
