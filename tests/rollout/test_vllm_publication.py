"""Weights on their way to a server: three steps of training against it, and every way in which they may not arrive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_process import AHEAD, LORA, misbehave, parts_for, restart, serving, train_against

from cupola.core.records import Action, Observer, RunFolderError, SamplerError
from cupola.core.runlog import RunReader
from cupola.train.models import WeightPublisher
from cupola.train.models.probe import Checksums
from cupola.train.rollout import VllmSampler
from cupola.train.rollout.vllm import GENERATE
from cupola.workflows.train import View, resume_run

SAME = 1e-4  # nats between two forward passes in float32 of the same weights


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--lora") as address:
        yield address


def after_step(step: int, url: str, how: str) -> Observer:
    """Lets the server misbehave from the end of a step on."""

    def observe(at: int, rows: object, groups: object) -> Action:
        if at == step:
            misbehave(url, how, times=99)
        return "continue"

    return observe


@pytest.mark.parametrize("way", ["gloo", "files", "lora"])
def test_three_steps_against_the_server(way: str, url: str, tmp_path: Path) -> None:
    restart(url)
    folder = f"sampler.folder={tmp_path}/handed"
    ways = {"gloo": (), "files": ("sampler.transfer=files", folder), "lora": (*LORA, folder)}
    run = RunReader(train_against(url, tmp_path, *ways[way]).folder)
    receipts = run.receipts()
    assert [row["version"] for row in receipts] == [1, 2, 3]
    assert len({row["digest"] for row in receipts}) == 3
    how = {"gloo": "gloo broadcast", "files": "files", "lora": "adapter by name"}[way]
    for row in receipts:
        assert row["how"] == how
        assert row["seconds"] > 0
        assert 0 <= row["difference"] < SAME < row["moved"]
    train = [row for row in run.metrics() if row["split"] == "train"]
    assert [row["entropy"] for row in train] == [None] * 3
    assert all(row["sampling/sampling_logp_difference/max"] < SAME for row in train)
    for step in (1, 2, 3):  # a step draws with the weights of the step before, then validates with its own
        versions = {(row["split"], row["policy_version"]) for row in run.rollouts(step)}
        assert versions == {("train", step - 1)} | ({("validation", step)} if step > 1 else set())
    assert way != "files" or not list((tmp_path / "handed").iterdir())
    assert way != "lora" or len(list((tmp_path / "handed").iterdir())) == 2  # the newest, and the one before


def test_one_step_off_draws_beside_the_update_with_the_weights_before_it(url: str, tmp_path: Path) -> None:
    restart(url)
    (tmp_path / "where.py").write_text(
        "import threading\n"
        "def where(completions, log_metric, **_):\n"
        "    log_metric('beside', threading.current_thread() is not threading.main_thread())\n"
        "    return [i % 3 for i in range(len(completions))]\n"
    )
    run = RunReader(train_against(url, tmp_path, *AHEAD, f"reward.1.path={tmp_path}/where.py:where").folder)
    train = {row["step"]: row for row in run.metrics("train")}
    assert {step: row["sampler/staleness"] for step, row in train.items()} == {1: 0, 2: 1, 3: 1}
    assert [row["beside"] for row in train.values()] == [1, 1, 1]
    assert [row["beside"] for row in run.metrics("validation")] == [0, 0]
    assert train[1]["sampling/sampling_logp_difference/max"] < SAME < train[2]["sampling/sampling_logp_difference/max"]
    assert [row["version"] for row in run.receipts()] == [1, 2, 3]


def test_a_server_that_fails_beside_the_update_ends_the_run_and_it_resumes(url: str, tmp_path: Path) -> None:
    restart(url)
    view = View(observers=[after_step(1, url, f"500 at {GENERATE}")])
    with pytest.raises(SamplerError, match=f"^{url}{GENERATE}: error 500"):
        train_against(url, tmp_path, *AHEAD, view=view)
    assert [row["step"] for row in RunReader(tmp_path / "served").metrics("train")] == [1]
    restart(url)
    assert resume_run(tmp_path / "served").state == "finished"
    assert [row["version"] for row in RunReader(tmp_path / "served").receipts()] == [1, 2, 3]


#: what the server does, what else the recipe says, and what is said within one step
LOST = {
    "stale": ((), "of the server's weights are not those that were sent, dp0:.* first: they did not arrive"),
    "stale without checksums": (("sampler.checksums=false",), "the sampler answers with the weights before"),
    "partly stale": ((), "of the server's weights are not those that were sent"),
    "half precision": ((), "did not arrive, or another type rounded them"),
    "half precision without checksums": (
        ("sampler.checksums=false",),
        r"trainer and sampler differ by \S+ nats on the probe where 0.001 is allowed: other weights, another type",
    ),
    "restart": ((), "answered with weights 'default' where .* were published; it was restarted"),
    "other version": ((), "answered with weights 'somebody-7'"),
    "500 at /update_weights": ((), "update_weights: error 500"),
    "hang at /weight_checker": (("sampler.timeout=2",), "weight_checker: no answer within 2 s"),
    "adapter not applied": (LORA, "the sampler answers with the first weights"),
}


@pytest.mark.parametrize("case", LOST)
def test_weights_that_did_not_arrive_end_the_run_within_a_step_and_it_resumes(
    case: str, url: str, tmp_path: Path
) -> None:
    how = case.removesuffix(" without checksums")
    overrides, said = LOST[case]
    folder = (f"sampler.folder={tmp_path}/handed",) if how.startswith("adapter") else ()
    restart(url)
    view = View(observers=[after_step(1, url, how)])
    with pytest.raises(SamplerError, match=f"^{url}.*{said}") as caught:
        train_against(url, tmp_path, "validation.every=1", *overrides, *folder, view=view)
    assert "\n" not in str(caught.value)
    root = tmp_path / "served"
    assert [row["version"] for row in RunReader(root).receipts()] == [1]
    restart(url)
    assert resume_run(root).state == "finished"
    assert [row["version"] for row in RunReader(root).receipts()] == [1, 2, 3]


@pytest.mark.parametrize("way", ["files", "lora"])
def test_a_folder_that_takes_no_weights_is_named_and_the_run_goes_on(way: str, url: str, tmp_path: Path) -> None:
    restart(url)
    handed = tmp_path / "handed"

    def block(step: int, rows: object, groups: object) -> Action:
        if step == 1:  # a file stands where the folder was
            shutil.rmtree(handed)
            handed.write_text("")
        return "continue"

    ways = {"files": ("sampler.transfer=files",), "lora": LORA}
    with pytest.raises(RunFolderError, match=rf"^{handed}/cupola-\w+-2: cannot be written: Not a directory$"):
        train_against(url, tmp_path, *ways[way], f"sampler.folder={handed}", view=View([block]))
    handed.unlink()
    restart(url)
    assert resume_run(tmp_path / "served").state == "finished"
    assert [row["version"] for row in RunReader(tmp_path / "served").receipts()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("how", "overrides", "said"),
    [
        (
            "",
            ("sampler.dtype=bfloat16",),
            "holds weights in float32 where bfloat16 was asked for; start it with",
        ),
        (
            "raw log-probabilities",
            (),
            r"tells log-probabilities of temperature 1 \(raw_logprobs\) where sampling.temperature = 1.5",
        ),
        ("", ("sampler.transfer=nccl",), "'nccl' sends between GPUs, and the trainer is on cpu; use 'files'"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused_at_once(
    how: str, overrides: tuple[str, ...], said: str, url: str, tmp_path: Path
) -> None:
    restart(url)
    misbehave(url, how)
    with pytest.raises(SamplerError, match=said):
        parts_for(url, tmp_path, *overrides).sampler().publish(0)


def test_an_adapter_that_is_never_applied_shows_at_the_first_step(url: str, tmp_path: Path) -> None:
    restart(url)
    view = View(observers=[after_step(0, url, "adapter not applied")])
    tiny = ("optim.learning_rate=1e-5", "sampler.tolerance=10.0")  # no difference that a tolerance would notice
    with pytest.raises(SamplerError, match=f"^{url}.*-1: the sampler answers with the weights before"):
        train_against(url, tmp_path, *LORA, f"sampler.folder={tmp_path}/handed", *tiny, view=view)


def test_another_model_at_the_server_is_noticed_at_the_first_publication(url: str, tmp_path: Path) -> None:
    restart(url)
    misbehave(url, "stale")
    parts = parts_for(url, tmp_path)
    for parameter in parts.policy.model.parameters():
        parameter.data += 0.01
    with pytest.raises(SamplerError, match="did not arrive, or it holds another type"):
        parts.sampler().publish(0)


def test_a_probe_asks_for_no_more_tokens_than_the_run(url: str, tmp_path: Path) -> None:
    restart(url)
    sampler = parts_for(url, tmp_path, "sampling.max_tokens=3").sampler()
    assert isinstance(sampler, VllmSampler)
    sampler.publish(0)
    assert isinstance(sampler.publisher, WeightPublisher)
    assert [answer.n_tokens for answer in sampler.publisher.probe.answers] == [3, 3, 3, 3]


def test_checksums_that_once_were_equal_must_stay_so_and_the_others_must_change() -> None:
    checks = Checksums()
    checks.check({"norm": "a", "q": "b"}, {"tp0:norm": "a", "tp1:norm": "a", "tp0:qkv": "x"}, "at")
    checks.check({"norm": "a2", "q": "b2"}, {"tp0:norm": "a2", "tp1:norm": "a2", "tp0:qkv": "x2"}, "at")
    checks.check({"norm": "a2", "q": "b2"}, {"tp0:norm": "a2", "tp1:norm": "a2", "tp0:qkv": "x2"}, "at")  # sent twice
    with pytest.raises(SamplerError, match="1 of the server's weights are not those that were sent, tp1:norm first"):
        checks.check({"norm": "a3", "q": "b3"}, {"tp0:norm": "a3", "tp1:norm": "a2", "tp0:qkv": "x3"}, "at")
    fused = Checksums()
    fused.check({"q": "b"}, {"tp0:qkv": "x"}, "at")
    with pytest.raises(SamplerError, match="the trainer's weights changed and the server's did not"):
        fused.check({"q": "b2"}, {"tp0:qkv": "x"}, "at")
