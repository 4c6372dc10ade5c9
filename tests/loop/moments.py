"""`cupola` as a process in which something happens at a moment: it is killed, or can write no more.

A moment is a token drawn, a gradient taken, a call to the system about a file, or the inside of a file's write: there a
part of the file has reached the disk when the process dies. The processes are forked from a server that has torch
loaded.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

#: Rooms that training imports when it runs.
WARM = ["cupola.cli.finish", "cupola.workflows.train", "cupola.train.models.sampler"]

#: Seconds that a command may take.
LONGEST = 120

#: The files of a run; each write of one is a moment `write NAME`, of rollouts `write rollouts`.
PYTHON_WRITES = (
    "recipe.toml", "run.json", "rollouts", "prompts.parquet", "prompts.jsonl", "weights.jsonl", "ledger.jsonl",
    "metrics.jsonl", "findings.jsonl", "config.json", "generation_config.json", "tokenizer_config.json", "rng.pt",
    "optimizer.pt", "state.json", "report.html",
)  # fmt: skip

#: Files that a library writes by itself.
LIBRARY_WRITES = ("model.safetensors", "tokenizer.json")

#: Calls to the system, before they are made.
CALLS = ("mkdir", "fsync", "replace", "rename", "unlink", "rmdir")

#: Moments of the work itself, and those after a file has taken its name.
WORK = ("token", "backward", "clip", "step", "replaced", "renamed")


#: Bytes that a file may still have on a full disk.
ROOM = 100


@dataclass(frozen=True)
class Blow:
    """What happens at the `n`-th moment of a kind: death by SIGKILL, a full disk, or a run that nobody may write to.

    `share` is the part of a file that has been written when a process dies inside its write.
    """

    kind: str
    n: int = 1
    what: Literal["killed", "full", "shut"] = "killed"
    share: float = 0.5


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it wrote, and how often each kind of moment came (empty for one that was killed)."""

    code: int
    out: str
    err: str
    counts: Counter[str]


class Moments:
    """Counts the moments of this process, and strikes at the one that is asked for."""

    def __init__(self, blow: Blow | None, root: Path) -> None:
        self.blow, self.root = blow, root
        self.counts = Counter[str]()

    def pass_by(self, kind: str, before_death: Callable[[], object] = lambda: None) -> None:
        """Count a moment and strike if it is the one; `before_death` then happens first."""
        self.counts[kind] += 1
        blow = self.blow
        if blow is None or (kind, self.counts[kind]) != (blow.kind, blow.n):
            return
        if blow.what == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        elif blow.what == "shut":
            shut(self.root if self.root.exists() else self.root.parent)
        else:
            before_death()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Put this in the way of everything that makes a moment."""
        import torch
        import transformers.modeling_utils
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        from cupola.train.models import sampler

        self._call(sampler._Decoding, "_choose", "token")
        self._call(torch.Tensor, "backward", "backward")
        self._call(torch.nn.utils, "clip_grad_norm_", "clip")
        self._call(torch.optim.AdamW, "step", "step")
        for name in CALLS:
            self._call(os, name, name)
        self._call(os, "replace", "replaced", after=True)
        self._call(os, "rename", "renamed", after=True)
        self._library(transformers.modeling_utils, "safe_save_file", lambda tensors, path, **_: Path(path))
        self._library(TokenizersBackend, "_save_pretrained", _tokenizer_file)
        builtins.open = io.open = self._opening(open)

    def _call(self, owner: Any, name: str, kind: str, after: bool = False) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            found = real(*arguments, **keywords) if after else None
            self.pass_by(kind)
            return found if after else real(*arguments, **keywords)

        setattr(owner, name, call)

    def _library(self, owner: Any, name: str, path_of: Callable[..., Path]) -> None:
        real = getattr(owner, name)

        def save(*arguments: Any, **keywords: Any) -> Any:
            path = path_of(*arguments, **keywords)

            def part() -> None:
                real(*arguments, **keywords)
                os.truncate(path, self._part(path.stat().st_size))

            self.pass_by(f"write {path.name}", part)
            return real(*arguments, **keywords)

        setattr(owner, name, save)

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            handle = real(file, mode, *arguments, **keywords)
            if set(mode) & set("wax+") and isinstance(file, str | Path) and name_of(Path(file)) in PYTHON_WRITES:
                handle.write = self._writing(handle, f"write {name_of(Path(file))}")
            return handle

        return opened

    def _writing(self, handle: Any, kind: str) -> Callable[[Any], int]:
        real = handle.write

        def write(data: Any) -> int:
            def part() -> None:
                real(data[: self._part(len(data))])
                handle.flush()

            self.pass_by(kind, part)
            return int(real(data))

        return write

    def _part(self, size: int) -> int:
        assert self.blow is not None
        return int(size * self.blow.share)


def shut(folder: Path) -> None:
    """Let nobody write below a folder, and give up the superuser's right to do so all the same."""
    libc, header, rights = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
    override = 1 << 1  # CAP_DAC_OVERRIDE, in the first word: the effective rights
    assert libc.capget(header, rights) == 0
    rights[0] &= ~override
    assert libc.capset(header, rights) == 0
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.stat().st_mode & ~0o222)


def open_again(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def _tokenizer_file(tokenizer: Any, save_directory: str, **_: Any) -> Path:
    return Path(save_directory) / "tokenizer.json"


def name_of(path: Path) -> str:
    """A file's name without what marks it as temporary; of rollouts the folder's."""
    return "rollouts" if path.parent.name == "rollouts" else path.name.removeprefix(".").removesuffix(".tmp")


@cache
def warm_context() -> ForkServerContext:
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    return context


def cupola(folder: Path, *arguments: str, blow: Blow | None = None, seconds: float | None = None) -> Ended:
    """`cupola ARGUMENTS` with `folder` as working directory; it is killed after `seconds`, if given, or by the blow."""
    context = warm_context()
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    process = context.Process(target=_child, args=(arguments, folder, [end for _, end in pipes], blow))
    process.start()
    for _, end in pipes:
        end.close()
    if seconds is not None:
        time.sleep(seconds)
        process.kill()
    process.join(LONGEST)
    assert process.exitcode is not None, f"still running after {LONGEST} s"
    out, err, counts = (_all_of(end) for end, _ in pipes)
    return Ended(process.exitcode, out, err, Counter(json.loads(counts or "{}")))


def _all_of(end: Connection) -> str:
    with end, open(os.dup(end.fileno()), encoding="utf-8") as stream:
        return stream.read()


def _child(arguments: tuple[str, ...], folder: Path, ends: list[Connection], blow: Blow | None) -> None:
    """The streams are pipes: what limits the disk is no limit to them."""
    os.chdir(folder)
    sys.stdout, sys.stderr, counts = (os.fdopen(os.dup(end.fileno()), "w", encoding="utf-8") for end in ends)
    sys.argv = ["cupola", *arguments]
    from cupola.cli import main

    moments = Moments(blow, folder / "tiny")
    moments.watch()
    moments.pass_by("start")
    try:
        main()
    finally:
        json.dump(moments.counts, counts)
        counts.close()
