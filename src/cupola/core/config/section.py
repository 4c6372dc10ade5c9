"""What every table of a recipe is made of: a frozen model, and the types of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cupola.core.config.dotted import leaves


class Section(BaseModel):
    """A table of a recipe: frozen, strict in its types, and without any key that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Misfit(ValueError):
    """A value that does not go together with others; `key` is the one at fault, below the model that raises this."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def changed(section: Section, preset: Mapping[str, Any]) -> list[str]:
    """The dotted keys whose value is neither the default nor the preset's: what somebody chose.

    A resolved recipe spells every value out, so that a key stands there tells nothing.
    """
    default, own = leaves(type(section).model_construct().model_dump()), leaves(preset)
    chosen = leaves(section.model_dump()).items()
    return [key for key, value in chosen if value not in (default.get(key), own.get(key, default.get(key)))]


#: No count or constant is larger: beyond it stands a slip, and beyond 2**63 nothing could hold a count.
MOST = 10**12

PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Int63 = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]
Temperature = Annotated[float, Field(ge=0.01, le=100)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
