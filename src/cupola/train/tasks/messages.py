"""Prompts as chat messages: reading them from a row, and wrapping plain text."""

from __future__ import annotations

import re
from typing import Any

from cupola.core.config import Source
from cupola.core.records import Content, DataError

#: A list of messages written as text, in JSON or as Python prints it.
LISTED = re.compile(r"""\s*\[\s*\{\s*(["'])(?:role|content)\1\s*:.*\}\s*\]\s*""", re.DOTALL)


def read_content(value: Any) -> Content:
    """A row's text or its list of {role, content} messages. Raises DataError saying what is malformed.

    A field of a message that is null is left out, because parquet gives each message every field of any.
    """
    if isinstance(value, str):
        if not value.strip():
            raise DataError("the prompt is empty")
        if LISTED.fullmatch(value):
            raise DataError("the prompt is chat messages written as text; give them as a list, in .jsonl or .parquet")
        return _unicode(value)
    if not isinstance(value, list):
        raise DataError(f"the prompt is {type(value).__name__}; give text or a list of chat messages")
    if not value:
        raise DataError("the prompt is an empty list of messages")
    return tuple(_message(number, message) for number, message in enumerate(value, 1))


def _message(number: int, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f"message {number} is {type(message).__name__}, not an object with role and content")
    fields = {name: value for name, value in message.items() if value is not None}
    for name in ("role", "content"):
        if name not in fields:
            raise DataError(f"message {number} has no `{name}`")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise DataError(f"message {number}: `{name}` is {type(value).__name__}, not text")
        _unicode(value)
    return fields


def _unicode(text: str) -> str:
    """The text, if it is valid Unicode: JSON can hold half a surrogate pair, which no tokenizer reads."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"the prompt holds half a surrogate pair, which is no character: {text[:40]!r}")
    return text


def as_asked(content: Content, data: Source) -> Content:
    """The content as the recipe has it asked: plain text wrapped if `data.chat`, `data.system` before each chat.

    A chat that opens with a system message of its own keeps it. Raises DataError for `data.system` without a chat.
    """
    if isinstance(content, str):
        if not data.chat:
            if data.system is not None:
                raise DataError("data.system needs chat messages, but the prompt is plain text; set data.chat = true")
            return content
        content = ({"role": "user", "content": content},)
    if data.system is None or content[0]["role"] == "system":
        return content
    return ({"role": "system", "content": data.system}, *content)
