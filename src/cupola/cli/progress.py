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
        self.first: tuple[int, float] | None = None  # step and time of the first call

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        self.first = self.first or (step, time.perf_counter())
        for row in rows:
            text = self.training(step, row) if row["split"] == "train" else validation(row)
            self.write(text)
        sys.stdout.flush()
        return "continue"

    def training(self, step: int, row: Row) -> str:
        return f"step {step}/{self.steps}  {'  '.join(figures(row))}  {number(self.left(step), '.0f')} s left"

    def left(self, step: int) -> float | None:
        """Seconds to the end, or `None` before a step has been timed."""
        first, started = self.first or (step, 0.0)
        return (time.perf_counter() - started) / (step - first) * (self.steps - step) if step > first else None

    def finding(self, step: int, finding: Finding) -> None:
        words = wording(finding.name, finding.values, finding.steps)
        self.write(f"step {step}: {finding.severity}: {words.title}: {words.do}")


class Bar(Lines):
    """The same on a terminal: a bar that carries the newest figures; findings and validations scroll above it."""

    def __init__(self, steps: int, progress: Progress) -> None:
        super().__init__(steps, lambda text: progress.console.print(text, markup=False, highlight=False))
        self.progress = progress
        self.task = progress.add_task("training", total=steps, figures="loading model and questions")

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        for row in rows:
            if row["split"] == "train":
                self.progress.update(self.task, completed=step, figures="\n".join(figures(row)))
            else:
                self.write(validation(row))
                if step == 0:
                    self.progress.update(self.task, figures="")
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
        columns = (
            BarColumn(12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[figures]}", markup=False),
        )
        with Progress(*columns, console=Console()) as progress:
            yield Bar(steps, progress)


def losses(steps: int, quiet: bool = False) -> Callable[[int, float], None]:
    """A line every twentieth of a supervised run."""

    def report(step: int, loss: float) -> None:
        if not quiet and (step % max(1, steps // 20) == 0 or step == steps):
            print(f"step {step}/{steps}  loss {loss:.4f}", flush=True)

    return report


def figures(row: Row) -> tuple[str, str]:
    """Reward and prompts with signal; entropy, length and speed of one step: two texts that fit half a terminal."""
    speed = row["tokens/spent"] / row["step_time"]
    return (
        f"reward {number(row['reward'], '.3f')}  prompts with signal {number(row['groups/with_signal'], '.0%')}",
        f"entropy {number(row['entropy'], '.3f')}  length {number(row['completions/mean_length'], '.1f')}  "
        f"{speed:,.0f} tokens/s",
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
