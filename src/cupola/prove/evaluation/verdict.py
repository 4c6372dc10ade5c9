"""Is a gain learned, or is it the base's own best behaviour made more likely?

A base that samples at temperature 1 loses answers that it gives when decoded greedily. Training can win those back by
sharpening the distribution alone, so the bar is the base at its best temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.prove.evaluation.text import points

GREEDY_BEST = "trained greedy - base best"
SAMPLED_BEST = "trained pass@1 - base best"
SAMPLED = "trained pass@1 - base pass@1"


def verdict(differences: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """`learned`, `sharpening` or `no gain`, with the numbers, from the paired differences by name.

    `learned`: trained greedy and trained pass@1 both beat the base at its best temperature, each lower bound above 0.
    `sharpening`: trained pass@1 beats base pass@1, lower bound above 0, but not both of the former do.
    `no gain`: anything else. The word is `None` where an interval is undefined.
    """
    greedy, sampled, like = (differences[name] for name in (GREEDY_BEST, SAMPLED_BEST, SAMPLED))
    if any(row["low"] is None for row in (greedy, sampled, like)):
        return {"word": None, "reason": f"Fewer than two paired questions can be scored: {like['n']}."}
    bar = f"trained greedy is at {points(greedy)} points and trained pass@1 at {points(sampled)}"
    gain = f"trained pass@1 is at {points(like)} points"
    if greedy["low"] > 0 and sampled["low"] > 0:
        return _told("learned", f"{bar}: both lower bounds are above 0", gain)
    if like["low"] > 0:
        return _told("sharpening", f"{bar}: not both lower bounds are above 0", f"{gain}: the lower bound is above 0")
    return _told("no gain", bar, f"{gain}: the lower bound is not above 0")


def _told(word: str, bar: str, gain: str) -> dict[str, str | None]:
    reason = f"Against the base at its best temperature {bar}; against base pass@1 {gain}."
    return {"word": word, "reason": reason}
