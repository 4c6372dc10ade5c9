"""The in-process sampler against plain forward passes and transformers' own generation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from tiny import distributions, tiny_policy
from torch import Tensor

from cupola.core.records import Completion, DataError, Prompt, Sampling
from cupola.train.models import InProcessSampler, Policy, make_policy
from cupola.train.models.decoder import Cached, Lean

PROMPTS = [Prompt("1+2="), Prompt("5="), Prompt("123+456="), Prompt("77+8=")]
LEVEL = [Prompt("1+2="), Prompt("3+4=")]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def draw(policy: Policy, sampling: Sampling, n: int = 4, seed: int = 0, **kwargs: int) -> list[list[Completion]]:
    return InProcessSampler(policy, **kwargs).generate(PROMPTS, n, sampling, seed)


def ids(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.token_ids.tolist() for completion in group] for group in groups]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("prompts", [PROMPTS, LEVEL], ids=["padded", "level"])
def test_log_probabilities_and_entropies_are_those_of_a_plain_forward_pass(
    policy: Policy, prompts: list[Prompt], temperature: float
) -> None:
    sampler = InProcessSampler(policy)
    groups = sampler.generate(prompts, 6, Sampling(20, temperature), seed=1)
    assert len({completion.n_tokens for group in groups for completion in group}) > 3  # rows end at different times
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            logp = distributions(policy, prompt.text, completion.token_ids.tolist(), temperature)
            expected = logp[range(completion.n_tokens), completion.token_ids]
            assert completion.logps == pytest.approx(expected.numpy(), abs=1e-4)
            assert completion.entropies == pytest.approx(-(logp.exp() * logp).sum(-1).numpy(), abs=1e-4)


def test_teacher_forced_log_probabilities_agree(policy: Policy) -> None:
    sampler = InProcessSampler(policy, cache_tokens=80)
    groups = sampler.generate(PROMPTS, 3, Sampling(12, 0.7), seed=2)
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    flat = [completion for group in groups for completion in group]
    for found, completion in zip(sampler.logprobs(prompts, flat, 0.7), flat, strict=True):
        assert found.dtype == np.float32
        assert found == pytest.approx(completion.logps, abs=1e-4)


def test_greedy_tokens_are_those_of_transformers(policy: Policy) -> None:
    for prompt, (completion,) in zip(PROMPTS, draw(policy, Sampling(20, 0), n=1), strict=True):
        encoded = torch.tensor([policy.encode(prompt.content)])
        found = policy.model.generate(encoded, do_sample=False, max_new_tokens=20, eos_token_id=1, pad_token_id=0)
        assert completion.token_ids.tolist() == found[0, encoded.shape[1] :].tolist()


def test_greedy_log_probabilities_are_those_of_temperature_one(policy: Policy) -> None:
    for prompt, (completion,) in zip(PROMPTS, draw(policy, Sampling(8, 0), n=1), strict=True):
        logp = distributions(policy, prompt.text, completion.token_ids.tolist(), 1.0)
        assert completion.logps == pytest.approx(logp.max(-1).values.numpy(), abs=1e-4)


def test_the_seed_decides(policy: Policy) -> None:
    sampling = Sampling(12, 1.0)
    assert ids(draw(policy, sampling, seed=3)) == ids(draw(policy, sampling, seed=3))
    assert ids(draw(policy, sampling, seed=3)) != ids(draw(policy, sampling, seed=4))


def test_the_global_generator_plays_no_part(policy: Policy) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ids(draw(policy, Sampling(12)))
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(2)
    assert ids(draw(policy, Sampling(12))) == first


def test_greedy_answers_do_not_depend_on_the_chunks(policy: Policy) -> None:
    whole = ids(draw(policy, Sampling(20, 0), n=2))
    for cache_tokens in (1, 100, 200):
        assert ids(draw(policy, Sampling(20, 0), n=2, cache_tokens=cache_tokens)) == whole


def test_tokens_are_drawn_from_the_distribution(policy: Policy) -> None:
    """The first token's frequencies over 4000 draws lie within 4 standard errors of its probabilities."""
    n = 4000
    (group,) = InProcessSampler(policy).generate([PROMPTS[0]], n, Sampling(1, 0.7), seed=0)
    found = np.bincount([int(c.token_ids[0]) for c in group], minlength=14) / n
    p = distributions(policy, PROMPTS[0].text, [0], 0.7)[0].exp().numpy()
    assert (np.abs(found - p) <= 4 * np.sqrt(p * (1 - p) / n) + 1e-9).all()


def test_every_stop_id_ends_a_completion_and_belongs_to_it(policy: Policy) -> None:
    groups = draw(policy, Sampling(30, 1.0, stop_token_ids=(4, 7)), n=16)
    endings = set()
    for completion in (c for group in groups for c in group):
        *earlier, last = completion.token_ids.tolist()
        assert not {1, 4, 7} & set(earlier)
        assert (completion.finish_reason == "stop") == (last in (1, 4, 7))
        endings.add(last)
    assert {1, 4, 7} <= endings


def test_several_end_tokens_of_a_model_are_all_known() -> None:
    policy = tiny_policy()
    policy.model.generation_config.eos_token_id = [1, 5, 6]
    policy = make_policy("several", policy.model, policy.tokenizer)
    assert policy.stop_ids == (1, 5, 6)
    for completion in (c for group in draw(policy, Sampling(40), n=16) for c in group):
        assert not {1, 5, 6} & set(completion.token_ids.tolist()[:-1])


def test_a_stop_string_ends_a_completion_and_stays_in_its_text(policy: Policy) -> None:
    groups = draw(policy, Sampling(30, 1.0, stop=("3", "+=")), n=16)
    stopped = 0
    for completion in (c for group in groups for c in group):
        before = policy.decode(completion.token_ids.tolist()[:-1])
        assert "3" not in before
        assert "+=" not in before
        if completion.text.endswith(("3", "+=")):
            assert completion.finish_reason == "stop"
            stopped += 1
    assert stopped > 10


def test_the_length_cap(policy: Policy) -> None:
    for completion in (c for group in draw(policy, Sampling(3), n=16) for c in group):
        assert 1 <= completion.n_tokens <= 3
        assert (completion.finish_reason == "length") == (completion.token_ids[-1] != 1)
        assert completion.n_tokens == 3 or completion.finish_reason == "stop"


def test_texts_leave_out_the_end(policy: Policy) -> None:
    for completion in (c for group in draw(policy, Sampling(30), n=4) for c in group):
        assert completion.text == policy.decode(completion.token_ids.tolist())
        assert "<" not in completion.text


def stepped(kind: type[Cached] | type[Lean], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that fills with the rows of each step of this kind of decoder."""
    rows: list[int] = []
    step = kind.step

    def noted(self: Any, token: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        rows.append(len(token))
        return step(self, token, position, mask)

    monkeypatch.setattr(kind, "step", noted)
    return rows


@pytest.mark.parametrize("kind", [Cached, Lean])
def test_a_prompt_is_read_once_for_its_whole_group(
    kind: type[Cached] | type[Lean], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    sampler = InProcessSampler(policy)
    sampler.lean = kind is Lean
    shapes: list[tuple[int, ...]] = []
    policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    rows = stepped(kind, monkeypatch)
    sampler.generate(PROMPTS, 16, Sampling(5), 0)
    assert shapes[0] == (4, 8)  # four prompts, padded to the longest, not 64
    assert rows[0] == 64


@pytest.mark.parametrize("kind", [Cached, Lean])
def test_finished_rows_leave_the_batch(kind: type[Cached] | type[Lean], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = InProcessSampler(tiny_policy())
    sampler.lean = kind is Lean
    widths = stepped(kind, monkeypatch)
    groups = sampler.generate(PROMPTS, 16, Sampling(30), 0)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 16
    longest = max(completion.n_tokens for group in groups for completion in group)
    assert len(widths) == longest - 1  # nothing is computed after the last row has ended
    unfinished = [sum(c.n_tokens > position for g in groups for c in g) for position in range(1, longest)]
    assert all(width <= math.ceil(live / 0.75) for width, live in zip(widths, unfinished, strict=True))


def test_both_decoders_draw_the_same_tokens() -> None:
    own, lean = InProcessSampler(tiny_policy()), InProcessSampler(tiny_policy())
    assert lean.lean
    own.lean = False
    assert ids(own.generate(PROMPTS, 8, Sampling(20), 5)) == ids(lean.generate(PROMPTS, 8, Sampling(20), 5))


def test_tokens_come_as_often_as_their_probability_says(policy: Policy) -> None:
    """The first token of 4,000 answers against the distribution it is drawn from: chi-square, 99.9% quantile."""
    groups = InProcessSampler(policy).generate([Prompt("1+2=")], 4000, Sampling(1), seed=7)
    seen = np.bincount([int(completion.token_ids[0]) for completion in groups[0]], minlength=14)
    expected = 4000 * distributions(policy, "1+2=", [2], 1.0)[0].exp().numpy()
    kept = expected >= 5
    surprise = float(((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum())
    assert kept.sum() > 5
    assert surprise < chi2.ppf(0.999, int(kept.sum()) - 1)


def test_a_prompt_that_does_not_fit_is_named() -> None:
    policy = tiny_policy(context=16)
    sampler = InProcessSampler(policy)
    assert len(sampler.generate([Prompt("123+456=")], 1, Sampling(8), 0)) == 1
    with pytest.raises(DataError, match=r"prompt \w{16} \('123\+456='\): 8 tokens .* up to 9 .* context of 16"):
        sampler.generate([Prompt("1="), Prompt("123+456=")], 1, Sampling(9), 0)
    with pytest.raises(DataError, match="has no tokens"):
        sampler.generate([Prompt("")], 1, Sampling(1), 0)


def test_published_versions_mark_what_is_sampled() -> None:
    policy = tiny_policy()
    sampler = InProcessSampler(policy)
    receipt = sampler.publish(7)
    assert (receipt.version, receipt.parameters) == (7, policy.parameters)
    assert sampler.generate(LEVEL, 1, Sampling(2), 0)[0][0].policy_version == 7


def test_a_special_token_can_be_a_stop_string() -> None:
    """The tokenizer's padding token is no end token here; as text it stops an answer like any other string."""
    policy = tiny_policy()
    special = policy.tokenizer.pad_token
    groups = InProcessSampler(policy).generate(PROMPTS, 32, Sampling(12, 1.5, (special,)), 3)
    answers = [completion.token_ids.tolist() for group in groups for completion in group]
    stopped = [ids for ids in answers if policy.pad_id in ids]
    assert stopped
    assert all(ids.index(policy.pad_id) == len(ids) - 1 for ids in stopped)
