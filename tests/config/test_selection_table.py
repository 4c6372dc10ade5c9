"""The table `sampling.selection`: what it takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from cupola.core.config import SamplingSection, validate
from cupola.core.records import RecipeError


def made(**selection: Any) -> SamplingSection:
    return validate({"selection": selection}, SamplingSection)


def test_uniform_is_the_default_and_a_written_out_recipe_loads_again() -> None:
    assert made() == SamplingSection()
    for sampling in (made(), made(kind="aimed", target=0.3, width=1.0, decay=0.0, explore=0.0)):
        assert validate(sampling.model_dump(), SamplingSection) == sampling


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        ({"kind": "dynamic"}, "selection.kind: input should be 'uniform' or 'aimed', got 'dynamic'"),
        (
            {"target": 0.4},
            "selection.target: is of no use to kind 'uniform'; set kind to 'aimed', or leave this out",
        ),
        ({"kind": "aimed", "taget": 0.4}, "selection.taget: unknown key; did you mean target?"),
        ({"kind": "aimed", "target": 1.0}, "selection.target: input should be less than 1, got 1.0"),
        ({"kind": "aimed", "width": 0.0}, "selection.width: input should be greater than 0, got 0.0"),
        ({"kind": "aimed", "decay": 1.0}, "selection.decay: input should be less than 1, got 1.0"),
        ({"kind": "aimed", "explore": 1.5}, "selection.explore: input should be less than or equal to 1, got 1.5"),
    ],
)
def test_refusals_name_the_key(selection: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        made(**selection)
    assert str(refused.value) == text
