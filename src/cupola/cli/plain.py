"""Text for a terminal from a source that nobody vouches for: a policy, a data file, an error's message."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text that cannot command the terminal: all but printable characters and spaces are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
