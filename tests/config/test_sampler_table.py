"""The [sampler] table: contradictions are refused in one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupola.core.config import load_recipe
from cupola.core.records import RecipeError

BASE = """
[data]
task = "arithmetic"
[[reward]]
name = "correct"
kind = "exact"
"""

VLLM = ("sampler.kind=vllm", "sampler.url=http://localhost:8000")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("sampler.url=http://localhost:8000",), "sampler.url: is of no use to kind 'in_process'"),
        (("sampler.kind=vllm",), "sampler.url: is missing: kind 'vllm' needs the server's address"),
        (("sampler.kind=vllm", "sampler.url=localhost:8000"), "sampler.url: should begin with http:// or https://"),
        ((*VLLM, "sampler.transfer=files"), "sampler.folder: is missing: transfer 'files' needs a folder"),
        ((*VLLM, "sampler.folder=here"), "sampler.folder: is of no use to transfer 'nccl'"),
        ((*VLLM, "sampler.address=10.0.0.1"), "sampler.address: is of no use to transfer 'nccl'"),
        ((*VLLM, "model.dtype=float64"), "model.dtype: 'float64' is a type that sampler.kind 'vllm' cannot hold"),
        (
            (*VLLM, "model.lora.rank=4"),
            "sampler.transfer: 'nccl' sends whole weights, but an adapter is loaded",
        ),
    ],
)
def test_contradictions_name_the_key(overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(BASE)
    with pytest.raises(RecipeError, match=said) as caught:
        load_recipe([path], overrides)
    assert "\n" not in str(caught.value)


def test_what_goes_together_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(BASE)
    assert load_recipe([path])[0].sampler.kind == "in_process"
    served = load_recipe([path], [*VLLM, "sampler.transfer=files", "sampler.folder=/shared", "model.lora.rank=4"])[0]
    assert served.sampler.url == "http://localhost:8000"
    assert served.sampler.folder == "/shared"
