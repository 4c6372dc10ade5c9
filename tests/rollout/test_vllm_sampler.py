"""The vLLM sampler against a server process: what it returns, and what it says of a server that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vllm_process import misbehave, parts_for, serving

from cupola.core.records import Completion, Group, Prompt, Rollout, SamplerError, Sampling, Verdict
from cupola.core.runlog.rows import rollout_rows
from cupola.train.models import InProcessSampler, Policy
from cupola.train.rollout import VllmSampler, headline

PROMPTS = [Prompt("1+2="), Prompt("3+4=")]
FORWARD = 1e-4  # nats between two forward passes in float32


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def published(url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[VllmSampler, Policy]:
    """A sampler whose server holds version 7 of the embedded policy; it gives up after 3 s, at once."""
    parts = parts_for(url, tmp_path_factory.mktemp("run"), "sampler.timeout=3")
    sampler = parts.sampler()
    assert isinstance(sampler, VllmSampler)
    sampler.publish(7)
    return sampler, parts.policy


def test_completions_come_with_the_trainers_log_probabilities(published: tuple[VllmSampler, Policy]) -> None:
    sampler, policy = published
    groups = sampler.generate(PROMPTS, 3, Sampling(12, temperature=0.7), seed=5)
    assert [len(group) for group in groups] == [3, 3]
    own = InProcessSampler(policy)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion, logps in zip(group, own.logprobs([prompt] * 3, group, 0.7), strict=True):
            assert completion.logps == pytest.approx(logps, abs=FORWARD)
            assert (completion.policy_version, completion.entropies) == (7, None)
            assert completion.text == policy.decode(completion.token_ids.tolist())
            stopped = completion.token_ids[-1] in policy.stop_ids
            assert completion.finish_reason == ("stop" if stopped else "length")
            assert stopped or completion.n_tokens == 12


def test_the_seed_decides_and_each_prompt_has_its_own(published: tuple[VllmSampler, Policy]) -> None:
    sampler, _ = published
    same = [PROMPTS[0], PROMPTS[0]]
    sampling = Sampling(12, temperature=5.0)  # near uniform: equal draws would be no accident

    def texts(seed: int) -> list[str]:
        return [each.text for group in sampler.generate(same, 2, sampling, seed) for each in group]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(2)}) == 8


def test_given_tokens_are_scored_as_the_trainer_scores_them(published: tuple[VllmSampler, Policy]) -> None:
    sampler, policy = published
    flat = [group[0] for group in sampler.generate(PROMPTS, 1, Sampling(12), seed=1)]
    theirs, ours = sampler.logprobs(PROMPTS, flat, 1.0), InProcessSampler(policy).logprobs(PROMPTS, flat, 1.0)
    assert [len(each) for each in theirs] == [each.n_tokens for each in flat]
    assert np.concatenate(theirs) == pytest.approx(np.concatenate(ours), abs=FORWARD)
    with pytest.raises(SamplerError, match=r"at temperature 1, not 0\.7"):
        sampler.logprobs(PROMPTS, flat, 0.7)


GENERATE = "/inference/v1/generate"

FAILURES = {
    f"hang at {GENERATE}": "no answer within 3 s; look into the server's log, or raise sampler.timeout",
    f"500 at {GENERATE}": r"error 500 \(EngineCore encountered an issue.\); look into the server's log",
    "garbage": "the answer is no JSON object, it begins with '<html>502 Bad Gateway</html>'",
    "half an answer": "the connection broke off",
    "no log-probabilities": "has log-probabilities for 0 of",
    "a log-probability missing": "has log-probabilities for",
    "too few completions": "gave 2 completions where 3 were asked for",
    "cut short": "cut a completion at 1 tokens where sampling.max_tokens = 12; does the server's --max-model-len",
    "aborted": "ended a completion for the reason 'abort'",
    "no version": "has choices.0.weight_versions: input should be a valid list, got None",
    "other version": "answered with weights 'somebody-7' where 'cupola-[0-9a-f]{8}-7' were published",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_names_the_address_and_what_is_wrong(
    how: str, url: str, published: tuple[VllmSampler, Policy]
) -> None:
    misbehave(url, how)
    with pytest.raises(SamplerError, match=f"^{url}.*{FAILURES[how]}") as caught:
        published[0].generate(PROMPTS[:1], 3, Sampling(12), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", [f"500 at {GENERATE}", "garbage", "half an answer"])
def test_what_another_attempt_may_mend_is_asked_again(
    how: str, url: str, published: tuple[VllmSampler, Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, _ = published
    expected = sampler.generate(PROMPTS[:1], 2, Sampling(12), seed=3)
    monkeypatch.setattr(sampler.server, "retries", 1)
    misbehave(url, how)
    again = sampler.generate(PROMPTS[:1], 2, Sampling(12), seed=3)
    assert [each.text for each in again[0]] == [each.text for each in expected[0]]
    misbehave(url, how, times=2)
    with pytest.raises(SamplerError, match=r"\(2 attempts\)$"):
        sampler.generate(PROMPTS[:1], 2, Sampling(12), seed=3)


def test_nothing_is_asked_before_weights_were_published(url: str, tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="no weights were published yet"):
        parts_for(url, tmp_path).sampler().generate(PROMPTS, 1, Sampling(4), seed=0)


def test_no_server_and_a_server_without_the_routes(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match=r"^http://127\.0\.0\.1:9/server_info.*: no server there; start it"):
        parts_for("http://127.0.0.1:9", tmp_path).sampler().publish(0)
    with serving() as url:
        parts = parts_for(url, tmp_path, "sampler.transfer=files", f"sampler.folder={tmp_path}", "model.lora.rank=2")
        parts.learner()
        with pytest.raises(SamplerError, match="load_lora_adapter: refused with 404: Not Found; start the server with"):
            parts.sampler().publish(0)


def test_a_completion_without_entropies_is_no_completion_of_entropy_zero() -> None:
    def group(entropies: np.ndarray | None) -> Group:
        told = Completion("1", np.array([3]), np.zeros(1, np.float32), entropies, "stop", 0)
        return Group("g", PROMPTS[0], (Rollout(told, {"right": Verdict(1.0, "ok")}, 1.0, True),) * 2)

    known, unknown = group(np.array([0.5], np.float32)), group(None)
    assert headline([known])["entropy"] == 0.5
    assert headline([unknown])["entropy"] is None
    assert headline([known, unknown])["entropy"] is None
    assert [row["entropy"] for row in rollout_rows(0, 0, [known, unknown], {}, "right")] == [0.5, 0.5, None, None]
