"""Numbers and hostile text for a page. Completions are written by a policy that is under test: nothing in them is
trusted, and nothing in them may hide."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from cupola.core import stats

NO_DATA = "–"
#: Beyond it, or this near to 0, a number's sums, differences and ratios leave the range of floats.
_LARGEST, _SMALLEST = 1e300, 1e-300


def finite(value: object) -> float | None:
    """The value as a float, or `None` if it is no number that a chart can hold (a truth value is none either)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value) if abs(value) >= _SMALLEST else 0.0


def measured(row: Mapping[str, Any], key: str) -> float | None:
    """A row's finite number under `key`, or `None`."""
    return finite(row.get(key))


def number(value: object, sign: bool = False) -> str:
    """A number to about three significant figures, with a true minus sign; a dash where there is none."""
    known = finite(value)
    if known is None:
        return NO_DATA
    size = abs(known)
    if size >= 1e12:
        style = ".2e"
    elif size >= 1000 or (known == int(known) and not sign):
        style = ",.0f"
    elif size and size < 1e-3:
        style = ".2g"
    else:
        style = ".1f" if size >= 100 else ".2f" if size >= 1 or sign else ".3f"
    return format(known, ("+" if sign else "") + style).replace("-", "−")


def percent(value: object) -> str:
    """A share as `stats.percent` has it, with a true minus sign; a dash where there is none."""
    known = finite(value)
    return NO_DATA if known is None else stats.percent(known).replace("-", "−")


def points(value: object) -> str:
    """A difference of shares as `stats.points` has it, with a true minus sign; a dash where there is none."""
    known = finite(value)
    return NO_DATA if known is None else stats.points(known).replace("-", "−")


def duration(seconds: object) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    known = finite(seconds)
    if known is None:
        return NO_DATA
    whole = round(known)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _is_hidden(character: str) -> bool:
    """Control, format (bidi, zero width), surrogate, private and unassigned characters, and odd line breaks."""
    return character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(value: object) -> str:
    """Text with every hidden character spelled out.

    The terminal's rule is stricter (`cli.plain`): there a line break would forge a line, here it is part of the text.
    """
    return "".join(c.encode("unicode_escape").decode() if _is_hidden(c) else c for c in str(value))


def visible(value: object) -> Markup:
    """Escaped markup in which hidden characters are spelled out, and set apart from a backslash that was typed."""
    return Markup("").join(
        Markup('<span class="esc">{}</span>').format(plain("".join(run))) if hidden else escape("".join(run))
        for hidden, run in groupby(str(value), _is_hidden)
    )


def prose(value: object) -> Markup:
    """Like `visible`, with what stands between backticks set as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(visible(part)) if index % 2 else visible(part)
        for index, part in enumerate(str(value).split("`"))
    )


def shorten(text: str, limit: int) -> tuple[str, int, str]:
    """(head, characters left out, tail): at most `limit` characters stay, three quarters of them at the head.

    The tail stays because an answer mostly stands at the end.
    """
    if len(text) <= limit:
        return text, 0, ""
    tail = limit // 4
    return text[: limit - tail], len(text) - limit, text[-tail:]
