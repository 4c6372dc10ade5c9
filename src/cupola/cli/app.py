"""The commands' table, and how an error leaves the process."""

from __future__ import annotations

import io
import os
import sys

import typer

from cupola.cli import reading, training
from cupola.cli.plain import is_first, plain

#: Commands in the order of a first day's work.
COMMANDS = (
    training.init,
    training.train,
    training.resume,
    training.sft,
    reading.groups,
    reading.diagnose,
    reading.ledger,
    reading.watch,
    reading.eval_,
    reading.doctor,
)

app = typer.Typer(
    help="Group-relative RL post-training of language models that cannot fail silently.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command(name=command.__name__.rstrip("_"))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("cupola"))
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; an error of cupola's own becomes one line and its exit code."""
    # Before torch is loaded: threads that spin while they wait take the core from whatever else runs on it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character shows its escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "transformers", "safetensors"):
            raise
        _fail(f"{error.name} is not installed; this command needs it: pip install -e '.[train]' in the clone", 1)
    except Exception as error:
        from cupola.core.records import CupolaError

        if not isinstance(error, CupolaError):
            raise
        _fail(str(error), error.exit_code)


def _fail(text: str, code: int) -> None:
    if is_first():
        print("error:", plain(" ".join(text.split())), file=sys.stderr)
    raise SystemExit(code)
