"""Loading policies: what is refused, and how weights are told apart."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import ALPHABET, tiny_policy
from tokenizers.processors import TemplateProcessing

from cupola.core.records import DataError, ModelError, Prompt
from cupola.train.models import (
    EMBEDDED,
    EMBEDDED_DIGEST,
    character_tokenizer,
    load_policy,
    make_policy,
    save_policy,
    set_threads,
    weights_digest,
)


def test_the_embedded_policy_is_the_one_that_was_shipped() -> None:
    weights = EMBEDDED / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == EMBEDDED_DIGEST
    assert weights.stat().st_size < 2_000_000
    policy = load_policy("embedded")
    assert policy.parameters < 1_000_000
    assert not policy.model.training


def test_a_changed_embedded_policy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Path(shutil.copytree(EMBEDDED, tmp_path / "embedded"))
    data = bytearray((changed / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (changed / "model.safetensors").write_bytes(data)
    monkeypatch.setattr("cupola.train.models.policy.EMBEDDED", changed)
    with pytest.raises(ModelError, match=rf"embedded policy: SHA-256 \w+ is not the shipped {EMBEDDED_DIGEST}"):
        load_policy("embedded")


def test_a_saved_policy_loads_as_it_was(tmp_path: Path) -> None:
    policy = tiny_policy()
    save_policy(policy, tmp_path / "saved")
    loaded = load_policy(str(tmp_path / "saved"))
    assert weights_digest(loaded.model.state_dict()) == weights_digest(policy.model.state_dict())
    assert loaded.encode("12+3=") == policy.encode("12+3=")
    assert (loaded.stop_ids, loaded.pad_id, loaded.context) == ((1,), 0, 64)
    assert load_policy(str(tmp_path / "saved"), dtype="float64").model.dtype == torch.float64


@pytest.mark.parametrize("source", ["nowhere", "./nowhere", "/no/where", "~/no-such-folder"])
def test_a_missing_folder(source: str) -> None:
    with pytest.raises(ModelError, match=f"^{source}: no such model folder$"):
        load_policy(source)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json in this model folder"):
        load_policy(str(tmp_path))


def drop_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def narrow(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 12}))


def tear(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:500])


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def unknown_kind(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no_such_kind"}')


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize("harm", [drop_tensor, narrow, tear, no_weights, unknown_kind, no_tokenizer])
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """Also where transformers would only warn: a missing tensor is otherwise drawn at random."""
    folder = tmp_path / "model"
    save_policy(tiny_policy(), folder)
    harm(folder)
    with pytest.raises(ModelError, match=rf"^{folder}: .+") as caught:
        load_policy(str(folder))
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="nonsense"):
        load_policy("embedded", device="nonsense")


def test_chat_needs_a_template() -> None:
    with pytest.raises(ModelError, match="new: the tokenizer has no chat template; use plain-text prompts"):
        tiny_policy().encode(({"role": "user", "content": "1+1="},))


def test_chat_goes_through_the_template() -> None:
    policy = tiny_policy()
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    assert policy.encode(({"role": "user", "content": "1+"}, {"role": "user", "content": "2"})) == policy.encode("1+2=")


def test_end_tokens_are_collected_from_everywhere() -> None:
    policy = tiny_policy()
    policy.model.generation_config.eos_token_id = [3, 1]
    policy.model.config.eos_token_id = 4
    assert make_policy("m", policy.model, policy.tokenizer).stop_ids == (1, 3, 4)


def test_a_model_without_an_end_token_is_refused() -> None:
    policy = tiny_policy()
    policy.tokenizer.eos_token = None
    policy.model.generation_config.eos_token_id = policy.model.config.eos_token_id = None
    with pytest.raises(ModelError, match="m: neither tokenizer nor generation config names an end-of-sequence token"):
        make_policy("m", policy.model, policy.tokenizer)


def test_without_a_padding_token_the_end_token_pads() -> None:
    policy = tiny_policy()
    policy.tokenizer.pad_token = None
    assert make_policy("m", policy.model, policy.tokenizer).pad_id == 1


def test_a_character_is_a_token() -> None:
    tokenizer = character_tokenizer(ALPHABET)
    ids = tokenizer("12+3=")["input_ids"]
    assert ids == [3, 4, 12, 5, 13]
    assert tokenizer.decode([*ids, 1], skip_special_tokens=True) == "12+3="


def test_the_digest_sees_one_changed_value() -> None:
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    digest = weights_digest(weights)
    assert weights_digest({"b": weights["b"], "a": weights["a"]}) == digest
    assert weights_digest({"a": weights["a"].clone(), "b": weights["b"].clone()}) == digest
    changed = weights["a"].clone()
    changed[1, 2] = 1e-45
    others = [
        {**weights, "a": changed},
        {**weights, "a": torch.zeros(3, 2)},
        {**weights, "a": torch.zeros(2, 3, dtype=torch.float64)},
        {"a": weights["a"], "c": weights["b"]},
        {"a": weights["a"]},
    ]
    assert len({digest, *map(weights_digest, others)}) == 6


def test_the_digest_sees_values_not_memory_layout() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    assert weights_digest({"a": value}) == weights_digest({"a": value.t().contiguous().t()})


def test_threads() -> None:
    assert set_threads(1000) == 1
    assert set_threads(10**8) >= 1
    assert set_threads(1000, asked=3) == 3


def test_an_end_token_that_the_tokenizer_appends_is_taken_off_a_prompt() -> None:
    """After it the answer would already be over; one that stands in the text itself stays."""
    tokenizer = character_tokenizer("12+=")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    policy = make_policy("ends", tiny_policy().model, tokenizer)
    assert tokenizer("1+2=")["input_ids"][-1] == 1
    assert policy.decode(policy.encode("1+2=")) == "1+2="
    assert policy.encode("1+2=")[-1] != 1


def test_a_character_without_a_token_is_refused_and_not_read_as_padding() -> None:
    with pytest.raises(DataError, match="cannot read all of it"):
        tiny_policy().encode_for(Prompt("1+x="), 4)
