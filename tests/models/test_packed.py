"""Prompts and completions in one pass say what two passes say, and give the same gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_decoder import MODELS, made
from tiny import tiny_policy
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from cupola.train.models import in_float64, pad, recompute, save_policy, scoring
from cupola.train.models.packed import is_packed, pack
from cupola.train.models.scoring import Sequences, completion_scores, read
from cupola.train.objectives import token_logps

SAME = 1e-12

#: Prompts shared and not, of unequal length; completions of unequal length, of one token, and without any.
PROMPTS = [[3, 4, 5], [3, 4, 5], [6], [7, 8, 9, 10, 11], [6], [3, 4, 5]]
COMPLETIONS = [[9, 8, 7, 6], [5], [4, 3, 2], [12, 13, 14, 15, 16], [], [1, 2]]
TABLES = {
    "mixed": (PROMPTS, COMPLETIONS),
    "one prompt": ([[3, 4, 5]] * 3, COMPLETIONS[:3]),
    "no prompt shared": ([[3, 4], [5, 6], [7]], COMPLETIONS[:3]),
    "one token each": ([[3, 4], [3, 4], [7]], [[5], [6], [7]]),
    "nothing": ([[3, 4], [7]], [[], []]),
}


def both(model: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The model as it is, and as it reads packed tokens."""
    plain, packed = in_float64(model), in_float64(made_alike(model))
    pack(packed)
    assert (is_packed(plain), is_packed(packed)) == (False, True)
    return plain, packed


def made_alike(model: PreTrainedModel) -> PreTrainedModel:
    other = type(model)(model.config.__class__.from_dict(model.config.to_dict())).eval()
    other.load_state_dict(model.state_dict())
    return other


def said(model: PreTrainedModel, sequences: Sequences) -> tuple[list[Tensor], list[Tensor]]:
    """[log-probabilities, entropies] where there are tokens, and the gradient of a sum that weighs each otherwise."""
    logp, entropy = completion_scores(model, sequences, 0.7, entropy=True)
    assert entropy is not None
    mask = sequences.mask.bool()
    weights = torch.linspace(0.5, 1.5, int(mask.sum()), dtype=torch.float64)
    model.zero_grad()
    ((logp[mask] - 0.3 * entropy[mask]) * weights).sum().backward()
    return [logp[mask].detach(), entropy[mask].detach()], [p.grad for p in model.parameters() if p.grad is not None]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    assert len(one) == len(other)
    return max((float((a - b).abs().max()) for a, b in zip(one, other, strict=True) if a.numel()), default=0.0)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", MODELS)
def test_one_pass_says_what_two_say(name: str, table: str) -> None:
    plain, packed = both(made(name))
    sequences = pad(*TABLES[table], pad_id=0)
    (scores, gradient), (own_scores, own_gradient) = said(plain, sequences), said(packed, sequences)
    assert apart(scores, own_scores) < SAME
    assert apart(gradient, own_gradient) < SAME


@pytest.mark.parametrize("change", ["pieces", "recomputed", "both"])
def test_nor_do_pieces_and_recomputation_change_it(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, packed = both(made("qwen3"))
    sequences = pad(PROMPTS, COMPLETIONS, pad_id=0)
    expected = said(plain, sequences)
    if change != "recomputed":
        monkeypatch.setattr(scoring, "LOGITS", 7 * packed.config.vocab_size)  # 30 positions: five pieces
    if change != "pieces":
        recompute(packed)
    found = said(packed, sequences)
    assert apart(expected[0], found[0]) < SAME
    assert apart(expected[1], found[1]) < SAME


def test_hidden_states_of_a_model_without_a_head() -> None:
    plain, packed = both(made("llama"))
    sequences = pad(PROMPTS, COMPLETIONS, pad_id=0)
    mask = sequences.mask.bool()
    expected, found = (torch.cat(read(model.base_model, sequences, head=False), 1)[mask] for model in (plain, packed))
    torch.testing.assert_close(found, expected, atol=SAME, rtol=0)


OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=16)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=16)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_stay_as_they_are(name: str) -> None:
    model = OTHERS[name]()
    before = model.config._attn_implementation
    pack(model)
    assert model.config._attn_implementation == before
    assert not is_packed(model)


def test_a_saved_policy_knows_nothing_of_it(tmp_path: Path) -> None:
    policy = tiny_policy()
    assert is_packed(policy.model)
    save_policy(policy, tmp_path)
    assert "attn" not in json.loads((tmp_path / "config.json").read_text())
    assert "packed" not in (tmp_path / "config.json").read_text()


def test_many_pieces_round_no_more_than_one_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's weight gradient beside the one in float64 of the same rounded numbers."""
    generator = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(512, 32, generator=generator).bfloat16(), torch.randn(64, 32, generator=generator))
    tokens, weight = torch.randint(0, 64, (512,), generator=generator), weight.bfloat16()
    found = {}
    for rows in (512, 4):
        monkeypatch.setattr(scoring, "LOGITS", rows * 64)
        head = weight.clone().requires_grad_()
        (logps,) = scoring.Pieces.apply(lambda z, t: (token_logps(z.float(), t),), states, head, tokens)
        logps.sum().backward()
        found[rows] = head.grad.double()
    exact = weight.double().requires_grad_()
    token_logps(states.double() @ exact.T, tokens).sum().backward()
    assert exact.grad is not None
    error = {rows: float((each - exact.grad).norm() / exact.grad.norm()) for rows, each in found.items()}
    assert error[4] < 1.5 * error[512]
