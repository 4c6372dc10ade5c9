"""LoRA: the policy starts unchanged, its weights stay, and what is saved is the policy that was trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny import ALPHABET, distributions, tiny_policy
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from cupola.core.config import Lora
from cupola.core.records import Prompt, RecipeError, Sampling
from cupola.train.models import (
    ADAPTER,
    AdapterOff,
    InProcessSampler,
    Policy,
    adapt,
    base_weights,
    character_tokenizer,
    critic_of,
    logprobs,
    make_policy,
    merged_weights,
    pad,
    restore_policy,
    save_policy,
    saved_weights,
    trainable,
    weights_digest,
)

LORA = Lora(rank=4, alpha=8)
PROMPT, COMPLETION = "12+3=", [4, 9, 2, 13, 1]


def adapted(policy: Policy, settings: Lora = LORA, learnt: bool = True) -> Policy:
    """The policy with an adapter; `learnt` gives B values, as training would."""
    policy.adapter = adapt(policy.model, settings, seed=0)
    if learnt:
        generator = torch.Generator().manual_seed(1)
        for name, weight in policy.model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(weight, std=0.3, generator=generator)
    return policy


def transposed_policy() -> Policy:
    """GPT-2, whose linear layers hold W transposed, and whose head is tied to the embedding as well."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(ALPHABET) + 2, n_embd=16, n_layer=2, n_head=2, n_positions=32, eos_token_id=1, bos_token_id=None
    )
    return make_policy("gpt2", GPT2LMHeadModel(config), character_tokenizer(ALPHABET))


def said(policy: Policy) -> Tensor:
    """log p of each token of the vocabulary at each position of one completion."""
    return distributions(policy, PROMPT, COMPLETION, 0.7)


def factors(policy: Policy) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in policy.model.named_parameters() if each.requires_grad}


@pytest.mark.parametrize("make", [tiny_policy, transposed_policy])
def test_the_policy_starts_unchanged(make: Callable[[], Policy]) -> None:
    plain, policy = make(), adapted(make(), learnt=False)
    assert torch.equal(said(policy), said(plain))
    assert weights_digest(base_weights(policy.model)) == weights_digest(plain.model.state_dict())
    sampling, prompts = Sampling(6, 1.0), [Prompt("1+1="), Prompt("12+34=")]
    answers = [InProcessSampler(each).generate(prompts, 3, sampling, seed=7) for each in (plain, policy)]
    assert [[a.text for a in group] for group in answers[0]] == [[a.text for a in group] for group in answers[1]]


def test_the_adapter_alone_is_trainable() -> None:
    """rank * (out + in) of each layer: four of 16 x 16, two of 24 x 16 and one of 16 x 24, twice."""
    policy = adapted(tiny_policy())
    assert all(".lora_A." in name or ".lora_B." in name for name in factors(policy))
    assert sum(each.numel() for each in trainable(policy.model)) == 2 * 4 * (4 * 32 + 3 * 40)
    plain = tiny_policy().model
    assert len(trainable(plain)) == len(list(plain.parameters()))


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    policies = [tiny_policy() for _ in range(3)]
    drawn = []
    for policy, seed in zip(policies, (0, 0, 1), strict=True):
        before = torch.random.get_rng_state()
        adapt(policy.model, LORA, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(5)
        drawn.append(factors(policy))
    first, same, other = drawn
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if ".lora_A." in name)


def test_targets_are_the_layers_named() -> None:
    policy = adapted(tiny_policy(), Lora(targets=["q_proj", "down_proj"]))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in factors(policy)} == {"q_proj", "down_proj"}


@pytest.mark.parametrize("name", ["q_prj", "lm_head", "embed_tokens", "mlp", "self_attn.q_proj"])
def test_a_target_that_cannot_be_adapted_is_refused(name: str) -> None:
    """The head too: it is tied to the embedding, and merging would change one and not the other."""
    with pytest.raises(RecipeError) as caught:
        adapt(tiny_policy().model, Lora(targets=["q_proj", name]), seed=0)
    assert str(caught.value) == (
        f"model.lora.targets: no linear layer {name!r} that can be adapted; there are "
        "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )


def test_the_reference_is_the_policy_without_its_adapter() -> None:
    plain, policy = tiny_policy(), adapted(tiny_policy())
    assert policy.adapter is not None
    with_adapter, moved = said(policy), trainable(policy.model)
    assert (with_adapter - said(plain)).abs().max() > 0.1
    reference = AdapterOff(policy.model, policy.adapter)
    with reference.speaking() as model:
        assert model is policy.model
        assert torch.equal(said(policy), said(plain))
    assert torch.equal(said(policy), with_adapter)
    assert [id(each) for each in trainable(policy.model)] == [id(each) for each in moved]
    with pytest.raises(ZeroDivisionError), reference.speaking():
        raise ZeroDivisionError
    assert torch.equal(said(policy), with_adapter)


def test_merged_weights_by_hand() -> None:
    """alpha / rank = 6 / 2 = 3; B A = [[1, 0], [2, 5]] [[1, 2, ...], [0, 1, ...]] in the corner."""
    policy = adapted(tiny_policy(), Lora(rank=2, alpha=6, targets=["q_proj"]), learnt=False)
    layer = policy.model.get_submodule("model.layers.1.self_attn.q_proj")
    with torch.no_grad():
        layer.lora_A["default"].weight.zero_()[:, :2] = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
        layer.lora_B["default"].weight[:2] = torch.tensor([[1.0, 0.0], [2.0, 5.0]])
    name = "model.layers.1.self_attn.q_proj.weight"
    base, merged = base_weights(policy.model), merged_weights(policy.model)
    expected = torch.zeros(16, 16)
    expected[:2, :2] = torch.tensor([[3.0, 6.0], [6.0, 27.0]])
    assert torch.equal(merged[name], tiny_policy().model.state_dict()[name] + expected)
    assert base.keys() == merged.keys() == tiny_policy().model.state_dict().keys()
    assert [each for each in base if not torch.equal(base[each], merged[each])] == [name]


@pytest.mark.parametrize("make", [tiny_policy, transposed_policy])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_what_is_saved_is_what_was_trained(tmp_path: Path, make: Callable[[], Policy]) -> None:
    """By plain transformers from the merged folder, and by peft from the base and the adapter's own folder."""
    policy = adapted(make())
    expected, trained = said(policy), factors(policy)
    save_policy(policy, tmp_path / "saved")
    assert torch.equal(said(policy), expected)
    assert all(torch.equal(each, trained[name]) for name, each in factors(policy).items())
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert type(merged) is type(policy.model)
    assert (said(make_policy("merged", merged, policy.tokenizer)) - expected).abs().max() < 1e-5
    beside = make()
    PeftModel.from_pretrained(beside.model, tmp_path / "saved" / ADAPTER)
    assert torch.equal(said(beside), expected)


def test_a_saved_adapter_is_put_back_bit_for_bit(tmp_path: Path) -> None:
    policy, other = adapted(tiny_policy()), adapted(tiny_policy(), learnt=False)
    save_policy(policy, tmp_path / "saved")
    assert restore_policy(other, saved_weights(other, tmp_path / "saved")) == []
    assert all(torch.equal(each, factors(policy)[name]) for name, each in factors(other).items())
    assert torch.equal(said(other), said(policy))


def test_an_adapter_of_other_layers_is_not_put_back(tmp_path: Path) -> None:
    save_policy(adapted(tiny_policy(), Lora(targets=["q_proj"])), tmp_path / "saved")
    other = adapted(tiny_policy(), Lora(targets=["k_proj"]))
    before = factors(other)
    wrong = restore_policy(other, saved_weights(other, tmp_path / "saved"))
    assert wrong[0] == "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
    assert len(wrong) == 8  # two layers, two factors, both targets
    assert all(torch.equal(each, before[name]) for name, each in factors(other).items())


def test_the_sampler_speaks_with_the_adapter() -> None:
    policy = adapted(tiny_policy())
    prompts = [Prompt("1+1="), Prompt("12+34=")]
    groups = InProcessSampler(policy).generate(prompts, 4, Sampling(8, 0.7), seed=3)
    rows = [
        (policy.encode(prompt.content), answer)
        for prompt, group in zip(prompts, groups, strict=True)
        for answer in group
    ]
    scored = logprobs(
        policy.model,
        [prompt for prompt, _ in rows],
        [answer.token_ids.tolist() for _, answer in rows],
        pad_id=0,
        temperature=0.7,
        micro_tokens=100,
    )
    for (_, answer), logp in zip(rows, scored, strict=True):
        assert answer.logps is not None
        assert torch.allclose(torch.from_numpy(answer.logps), logp, atol=1e-5)


def test_a_critic_of_an_adapted_policy_trains_an_adapter_and_its_head() -> None:
    policy = adapted(tiny_policy(), learnt=False)
    critic = critic_of(policy)
    moved = {name for name, each in critic.named_parameters() if each.requires_grad}
    assert {name for name in moved if ".lora_" not in name} == {"head.weight", "head.bias"}
    assert len(moved) == 2 + len(factors(policy))
    assert not {id(each) for each in critic.parameters()} & {id(each) for each in policy.model.parameters()}
    whole = critic_of(tiny_policy())
    assert len(trainable(whole)) == len(list(whole.parameters()))


def test_in_bfloat16_the_adapter_is_single_precision() -> None:
    """A step of bfloat16 is 1/256 of a weight, more than an update."""
    policy = tiny_policy()
    torch.nn.Module.to(policy.model, torch.bfloat16)
    adapted(policy)
    critic = critic_of(policy)
    assert {each.dtype for each in trainable(policy.model)} == {torch.float32}
    assert {each.dtype for each in merged_weights(policy.model).values()} == {torch.bfloat16}
    values = critic(pad([policy.encode(PROMPT)], [COMPLETION], policy.pad_id))
    assert values.tolist() == [[0.0] * 5]
