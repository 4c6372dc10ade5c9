"""Live progress: a bar on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cupola.core.catalogue import wording
from cupola.core.records import Action, Finding, Group

Row = Mapping[str, Any]


class Lines:
    """One line per step and validation on standard output; an observer of the loop."""

    def __init__(self, steps: int, write: Callable[[str], None] = print) -> None:
        self.steps, self.write = steps, write
        self.started, self.first = time.perf_counter(), 0

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        self.first = self.first or step
        for row in rows:
            text = self.training(step, row) if row["split"] == "train" else validation(row)
            self.write(text)
        sys.stdout.flush()
        return "continue"

    def training(self, step: int, row: Row) -> str:
        done = step - self.first + 1
        left = (time.perf_counter() - self.started) / done * (self.steps - step)
        return f"step {step}/{self.steps}  {figures(row)}  {left:.0f} s left"

    def finding(self, step: int, finding: Finding) -> None:
        words = wording(finding.name, finding.values, finding.steps)
        self.write(f"step {step}: {finding.severity}: {words.title}: {words.do}")


class Bar(Lines):
    """The same on a terminal: a bar that carries the newest figures; findings and validations scroll above it."""

    def __init__(self, steps: int, progress: Progress) -> None:
        super().__init__(steps, lambda text: progress.console.print(text, markup=False, highlight=False))
        self.progress = progress
        self.task = progress.add_task("training", total=steps, figures="")

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        for row in rows:
            if row["split"] == "train":
                self.progress.update(self.task, completed=step, figures=figures(row))
            else:
                self.write(validation(row))
        return "continue"


class Silent(Lines):
    """Nothing at all, for `--json`."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps, lambda text: None)


@contextmanager
def bar(steps: int, quiet: bool = False) -> Iterator[Lines]:
    """The view that fits where the output goes."""
    if quiet:
        yield Silent(steps)
    elif not sys.stdout.isatty():
        yield Lines(steps)
    else:
        columns = (BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
        with Progress(*columns, console=Console()) as progress:
            yield Bar(steps, progress)


def losses(steps: int, quiet: bool = False) -> Callable[[int, float], None]:
    """A line every twentieth of a supervised run."""

    def report(step: int, loss: float) -> None:
        if not quiet and (step % max(1, steps // 20) == 0 or step == steps):
            print(f"step {step}/{steps}  loss {loss:.4f}", flush=True)

    return report


def figures(row: Row) -> str:
    """Reward, prompts with signal, entropy, length and speed of one step."""
    speed = row["tokens/spent"] / row["step_time"]
    return "  ".join(
        [
            f"reward {number(row['reward'], '.3f')}",
            f"signal {number(row['groups/with_signal'], '.0%')}",
            f"entropy {number(row['entropy'], '.3f')}",
            f"length {number(row['completions/mean_length'], '.1f')}",
            f"{speed:,.0f} tokens/s",
        ]
    )


def validation(row: Row) -> str:
    """Sampled and greedy accuracy of one validation."""
    parts = [f"validation at step {row['step']}"]
    if row.get("correct/mean") is not None:
        parts.append(f"sampled {row['correct/mean']:.1%}")
    if row.get("correct/greedy") is not None:
        parts.append(f"greedy {row['correct/greedy']:.1%}")
    return "  ".join(parts)


def number(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)
