"""What a process may print: text from a source that nobody vouches for, and whether it speaks at all."""

from __future__ import annotations

import os


def plain(text: str) -> str:
    """Text that cannot command the terminal: all but printable characters and spaces are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str) -> str:
    """Plain text in quotes, so that spaces at its ends are seen; lines stay lines."""
    return '"' + "\n".join(map(plain, text.split("\n"))) + '"'


def is_first() -> bool:
    """Whether this process speaks: of several that torchrun started the first does."""
    return os.environ.get("RANK", "0") == "0"
