"""Train the demo recipe for several seeds and print gains, baselines and intervals.

    python scripts/demo_seeds.py [--seeds 0 1 2] [--folder runs]

Exits 1 if a seed misses what the demo promises: base greedy at most 60%, sampled pass@1 up by at least 20 points, and
both trained greedy and trained pass@1 above the base at its best temperature with a 95% lower bound above 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cupola.core.runlog import RunReader
from cupola.prove.evaluation import percent, points

RECIPE = Path(__file__).parent.parent / "recipes" / "demo.toml"


def train(seed: int, folder: Path) -> Path:
    """One run in its own process, as a user would start it; 3 says that it had a finding."""
    name = f"demo-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = [str(Path(sys.executable).with_name("cupola")), "train", str(RECIPE)]
    done = subprocess.run([*command, f"run.seed={seed}", f"run.name={name}", f"run.folder={folder}"], check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"seed {seed}: cupola train ended with exit code {done.returncode}")
    return folder / name


def show(seed: int, run: Path) -> bool:
    """Print one seed's table; whether it keeps the promise."""
    reader = RunReader(run)
    summary = list(reader.evals().values())[-1]
    attempt = reader.manifest()["attempts"][-1]
    base, trained = summary["arms"]["base"], summary["arms"]["trained"]
    differences: dict[str, Any] = {each["name"]: each for each in summary["differences"]}
    print(f"\nseed {seed}: {run}, training {attempt['ended'] - attempt['started']:.0f} s")
    for name in base:
        after = f"   trained {percent(trained[name])}" if name in trained else ""
        print(f"  {name:<18} base {percent(base[name])}{after}")
    for name, difference in differences.items():
        print(f"  {name}: {points(difference)} points")
    print(f"  verdict: {summary['verdict']['word']}")
    return bool(
        base["greedy"]["value"] <= 0.6
        and differences["trained pass@1 - base pass@1"]["value"] >= 0.2
        and summary["verdict"]["word"] == "learned"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    runs = {seed: train(seed, options.folder) for seed in options.seeds}
    kept = {seed: show(seed, run) for seed, run in runs.items()}
    print(f"\n{sum(kept.values())} of {len(kept)} seeds keep the promise")
    sys.exit(0 if all(kept.values()) else 1)


if __name__ == "__main__":
    main()
