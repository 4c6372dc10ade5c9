"""The command line: parse, call one workflow, print. Commands import what they need when they run."""

from cupola.cli.app import main

__all__ = ["main"]
