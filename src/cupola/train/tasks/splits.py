"""Splitting by hash: a question's own text decides where it belongs, whatever the order, the size or the seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

from cupola.core.records import DataError, Prompt, Split

#: Shares of a task's problems; the borders lie at their running sums.
SHARES: Mapping[Split, float] = {"train": 0.7, "validation": 0.1, "dev": 0.1, "test": 0.1}

_BORDERS = tuple(zip(SHARES, accumulate(SHARES.values()), strict=True))


def derive(*key: str | int) -> int:
    """A 64-bit seed from SHA-256 of the key's JSON. Sums such as seed + index would overlap between runs."""
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def bucket(identity: str, salt: str) -> float:
    """The place in [0, 1) of a question's identity, uniform over questions and independent between salts."""
    return (derive(salt, identity) >> 11) / 2**53


def split_of(family: str) -> Split:
    """The one split of a task in which a family of problems lies."""
    place = bucket(family, "task")
    return next((split for split, border in _BORDERS if place < border), "test")


def refuse_overlap(
    train: Sequence[Prompt], held_out: Sequence[Prompt], place: Callable[[Prompt], str] = attrgetter("id")
) -> None:
    """Raise DataError if a held-out question also stands in the training set.

    `place` names a prompt for a person (`val.jsonl: line 3`); the text gives the count and the first three.
    """
    trained = {prompt.id for prompt in train}
    both = [prompt for prompt in held_out if prompt.id in trained]
    if both:
        first = "; ".join(f"{place(prompt)} ({' '.join(prompt.text.split())[:60]!r})" for prompt in both[:3])
        raise DataError(
            f"{len(both)} of {len(held_out)} held-out questions also stand in the training set: {first}"
            f"{'; ...' if len(both) > 3 else ''}; remove them from one of the two"
        )
