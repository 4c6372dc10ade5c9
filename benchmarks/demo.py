"""Budgets of the demo on this machine: training time, peak memory, and how fast `cupola --help` answers.

    python benchmarks/demo.py

Prints each figure beside its budget and exits 1 where one is passed. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from idle import wait_until_idle

from cupola.core.runlog import RunReader

ROOT = Path(__file__).parent.parent
CUPOLA = str(Path(sys.executable).with_name("cupola"))


def help_seconds() -> float:
    """Median wall time of seven calls after one to warm the file cache."""
    times = []
    for _ in range(8):
        started = time.perf_counter()
        subprocess.run([CUPOLA, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return median(times[1:])


def demo() -> tuple[float, float]:
    """Seconds of training, validations included, and peak resident memory in GB of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [CUPOLA, "train", str(ROOT / "recipes" / "demo.toml"), "run.name=demo", f"run.folder={folder}"]
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 3):
            sys.exit(f"the demo ended with exit code {done.returncode}")
        attempt = RunReader(Path(folder) / "demo").manifest()["attempts"][0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return attempt["ended"] - attempt["started"], peak


def main() -> None:
    wait_until_idle()
    seconds, gigabytes = demo()
    figures = [
        ("training", seconds, 240, "s"),
        ("peak memory", gigabytes, 2, "GB"),
        ("--help", help_seconds(), 0.5, "s"),
    ]
    for name, value, budget, unit in figures:
        print(f"{name:<12} {value:7.2f} {unit}   budget {budget} {unit}   {'ok' if value <= budget else 'OVER'}")
    sys.exit(0 if all(value <= budget for _, value, budget, _ in figures) else 1)


if __name__ == "__main__":
    main()
