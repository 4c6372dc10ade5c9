"""What `--dry-run` estimates beside what a run then takes: seconds of sampling and of update, and peak memory.

    python benchmarks/preflight.py demo smollm2

Every group is forwarded (a KL term sees to it), as the estimate assumes. Prints each ratio, and exits 1 where one is
off by more than a quarter. Waits for an idle machine; needs `make smollm2` for the real model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from idle import wait_until_idle

from cupola.core.runlog import RunReader

ROOT = Path(__file__).parent.parent
ALL_FORWARDED = ("objective.beta=0.04", "evaluation.at_end=false", "validation.questions=1", "validation.every=1000")
CASES = {
    "demo": ("recipes/demo.toml", "run.steps=20"),
    "demo, small passes": ("recipes/demo.toml", "run.steps=20", "optim.micro_tokens=512"),
    "smollm2": ("recipes/smollm2-arithmetic.toml", "run.steps=4", "sampling.prompts_per_step=8"),
    "smollm2, recomputed": (
        "recipes/smollm2-arithmetic.toml",
        "run.steps=4",
        "sampling.prompts_per_step=12",
        "optim.gradient_checkpointing=true",
    ),
}
ALLOWED = 0.25


def cupola(*arguments: str) -> tuple[str, float]:
    """What the command prints on standard output, and its peak resident memory in GB."""
    command = [str(Path(sys.executable).with_name("cupola")), "train", *arguments, "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 3):  # 3: a finding
            sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return told, usage.ru_maxrss / 2**20


def estimated(case: str) -> Mapping[str, float]:
    found: Mapping[str, float] = json.loads(cupola(*CASES[case], *ALL_FORWARDED, "--dry-run")[0])
    return found


def measured(case: str) -> dict[str, float]:
    """Medians over the steps but the first, under the names of the estimates."""
    with tempfile.TemporaryDirectory() as folder:
        _, peak = cupola(*CASES[case], *ALL_FORWARDED, f"run.folder={folder}", "run.name=measured")
        rows = RunReader(Path(folder) / "measured").metrics("train")[1:]
    return {
        "sampling_seconds_per_step": median(row["time/sampling"] for row in rows),
        "update_seconds_per_step": median(row["time/update"] for row in rows),
        "peak_memory_gb": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=list(CASES))
    worst = 0.0
    for case in parser.parse_args().cases:
        wait_until_idle()
        told, took = estimated(case), measured(case)
        for key, value in took.items():
            ratio = told[key] / value
            worst = max(worst, abs(ratio - 1))
            print(
                f"{case:<20} {key:<26} estimated {told[key]:8.3f}  measured {value:8.3f}  ratio {ratio:.2f}", flush=True
            )
    sys.exit(0 if worst <= ALLOWED else 1)


if __name__ == "__main__":
    main()
