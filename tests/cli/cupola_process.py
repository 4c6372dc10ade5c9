"""`cupola` as a process of its own, forked from a server that has torch loaded: a start costs no seven seconds."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

#: Rooms that the commands import when they run.
WARM = [
    "cupola.cli.finish",
    "cupola.workflows.train",
    "cupola.workflows.preflight",
    "cupola.workflows.evaluate",
    "cupola.workflows.cold_start",
    "cupola.workflows.answers",
]


#: Seconds that a command may take.
LONGEST = 120


@dataclass(frozen=True)
class Ended:
    """How a process ended and what it wrote."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> str:
        """The one line on standard error, without its `error: `; nothing else was printed."""
        assert self.err.startswith("error: "), self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("error: ").removesuffix("\n")


#: `cupola(folder, *arguments)`.
Cupola = Callable[..., Ended]

#: A recipe of a second.
SMALL = """\
[run]
name = "r"
steps = 2

[data]
task = "arithmetic"

[sampling]
prompts_per_step = 4
group_size = 4
max_tokens = 44

[[reward]]
name = "correct"
kind = "exact"
extract = '#(\\d+)$'

[objective]
preset = "dr_grpo"

[optim]
learning_rate = 5e-4

[validation]
every = 1
questions = 4
samples = 2

[evaluation]
questions = 4
samples = 2
dev_questions = 4
dev_samples = 1
temperatures = [1.0]
"""


def warm_context() -> ForkServerContext:
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    return context


def run(context: ForkServerContext, arguments: list[str], folder: Path, room: int | None = None) -> Ended:
    """`cupola ARGUMENTS` with `folder` as working directory; no file may exceed `room` bytes, as on a full disk."""
    out, err = folder / ".stdout", folder / ".stderr"
    process = context.Process(target=_child, args=(arguments, str(folder), str(out), str(err), room))
    process.start()
    process.join(LONGEST)
    assert process.exitcode is not None, f"still running after {LONGEST} s"
    try:
        return Ended(process.exitcode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
    finally:
        out.unlink()
        err.unlink()


def _child(arguments: list[str], folder: str, out: str, err: str, room: int | None) -> None:
    os.chdir(folder)
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    sys.argv = ["cupola", *arguments]
    from cupola.cli import main

    main()
