"""Supervised losses and averages: each rule by hand, TRL's SFTConfig, and a loop described in its rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupola.core.records import Completion, Group, Prompt, Rollout, Verdict
from cupola.train.ledger import AVERAGES, COUNTED, RULES, SUPERVISED, TIES, TRAINERS, Explanation
from cupola.train.loop.record import validation_metrics


def sft(**given: Any) -> Explanation:
    return TRAINERS["trl"]("sft.json", {"packing": False, **given})


# Two micro-batches of examples with 1 and 3, then 2 target tokens; the losses of each token.
MICRO = (([6.0], [1.0, 2.0, 3.0]), ([4.0, 8.0],))
EXAMPLES = [example for micro in MICRO for example in micro]


def weighted(omegas: list[float]) -> float:
    return sum(omega * sum(example) for omega, example in zip(omegas, EXAMPLES, strict=True))


@pytest.mark.parametrize(
    ("rule", "omegas", "worked"),
    [
        ("token_mean", [1 / 6, 1 / 6, 1 / 6], 4.0),  # 24 / 6
        ("micro_token_mean", [1 / 8, 1 / 8, 1 / 4], 4.5),  # (12 / 4 + 12 / 2) / 2
        ("sequence_mean", [1 / 3, 1 / 9, 1 / 6], 14 / 3),  # (6 + 2 + 6) / 3
        ("packed_token_mean", [1 / 6, 1 / 6, 1 / 6], 4.0),  # rows of 4 and 2 tokens
        ("packed_row_mean", [1 / 8, 1 / 8, 1 / 4], 4.5),  # two rows, each its own mean
        ("token_sum", [1.0, 1.0, 1.0], 24.0),
    ],
)
def test_each_supervised_rule_by_hand(rule: str, omegas: list[float], worked: float) -> None:
    values = {
        "sum_i |y_i|": "6",
        "sum_{rows r} sum_{i in r} |y_i|": "6",
        "K * sum_{i in micro-batch} |y_i|": "2 * {micro}",
        "R * sum_{i in r} |y_i|": "2 * {micro}",
        "N * |y_i|": "3 * {own}",
    }
    text = SUPERVISED[rule].formula.partition(" = ")[2]
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(name, values[name])
    micro = [sum(map(len, group)) for group in MICRO for _ in group]
    found = [text.format(micro=m, own=len(example)) for m, example in zip(micro, EXAMPLES, strict=True)]
    assert [float(eval(each, {"__builtins__": {}})) for each in found] == pytest.approx(omegas)
    assert weighted(omegas) == pytest.approx(worked)


def test_the_whole_steps_tokens_are_counted_on_all_ranks() -> None:
    found = sft(gradient_accumulation_steps=4, world_size=2)
    (loss,) = found.denominators
    assert found.source == "TRL 1.16, SFTConfig"
    assert (loss.term, loss.numbers, loss.value, loss.cut) == ("loss", "omega = 1 / N_items", None, "yes")
    assert "does not change it" in loss.accumulation
    assert SUPERVISED["micro_token_mean"].formula in found.notices[0]


def test_without_averaging_over_devices_each_rank_counts_alike() -> None:
    (loss,) = sft(average_tokens_across_devices=False, world_size=4).denominators
    assert (loss.numbers, loss.value) == ("omega = 1 / (4 * N_rank)", 4)
    assert loss.cut == "yes on one rank; no between ranks"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"assistant_only_loss": True}, "Tokens outside the assistant's turns leave numerator and count."),
        ({"completion_only_loss": True}, "Prompt tokens leave numerator and count."),
        ({"completion_only_loss": False}, "No prompt is masked"),
        ({}, "the end of a long example is not learned"),
        ({"packing": True}, SUPERVISED["packed_token_mean"].says),
        ({"packing": True}, "Rows laid end to end change no weight"),
        ({"padding_free": True}, "Rows laid end to end change no weight"),
        ({"packing": True, "packing_strategy": "bfd_split"}, "begin a piece of their own"),
        ({"packing": True, "packing_strategy": "wrapped"}, "pieces of an example stand in several rows"),
        ({"loss_type": "dft"}, "multiplied by its own probability"),
        ({"label_smoothing_factor": 0.1}, "The smoothing term has the same count"),
    ],
)
def test_what_leaves_and_what_packing_does(given: dict[str, Any], said: str) -> None:
    assert any(said in sentence for sentence in sft(**given).denominators[0].words)


def test_what_is_off_is_not_said() -> None:
    words = " ".join(sft(max_length=None).denominators[0].words)
    assert "max_length" not in words
    assert "end to end" not in words
    assert "probability" not in words
    assert "assistant" not in words


def test_one_key_or_loss_of_its_own_makes_it_supervised() -> None:
    assert TRAINERS["trl"]("a", {"loss_type": "nll"}).source == "TRL 1.16, SFTConfig"
    assert TRAINERS["trl"]("a", {"assistant_only_loss": False}).source == "TRL 1.16, SFTConfig"
    assert TRAINERS["trl"]("a", {"loss_type": "grpo"}).source == "TRL 1.16, GRPOConfig"
    assert TRAINERS["trl"]("a", {"per_device_train_batch_size": 8}).source == "TRL 1.16, GRPOConfig"


def test_a_mixture_of_experts_and_the_evaluation_loss() -> None:
    found = sft(router_aux_loss_coef=0.01, gradient_accumulation_steps=4, world_size=2, eval_strategy="steps")
    assert [(row.term, row.value) for row in found.denominators] == [("loss", None), ("aux", 8)]
    assert [(mean.term, mean.rule, mean.counted) for mean in found.averages] == [
        ("eval_loss", "batch_token", {"tokens beyond max_length": "left_out"})
    ]
    assert found.unreasoned == ["loss", "aux", "eval_loss"]
    assert sft().averages == []


def answer(right: bool | None) -> Rollout:
    """A wrong answer has two tokens of entropy 1.5, any other one of 0.5."""
    n, entropy = (2, 1.5) if right is False else (1, 0.5)
    completion = Completion("x", np.arange(n), np.zeros(n, np.float32), np.full(n, entropy, np.float32), "stop", 0)
    score = None if right is None else float(right)
    verdict = Verdict(score, "error" if right is None else "ok" if right else "wrong")
    return Rollout(completion, {"part": verdict}, score, right)


def test_our_validation_averages_as_its_measures_say() -> None:
    # Of three questions: 1 right of 1, 1 of 4 with one unjudged more, 0 of 2; rewards as the answers are right.
    judged = [[True], [True, False, False, False, None], [False, False]]
    groups = [Group(str(index), Prompt("q"), tuple(map(answer, rights))) for index, rights in enumerate(judged)]
    found = validation_metrics(groups)
    assert found["correct/mean"] == pytest.approx((1 + 1 / 4 + 0) / 3)  # macro: every question alike
    assert found["reward"] == pytest.approx(2 / 7)  # micro: every answer alike, that without a reward left out
    assert found["rewards/part/mean"] == pytest.approx(2 / 7)
    assert found["entropy"] == pytest.approx((2 * 0.5 + 10 * 1.5 + 0.5) / 13)  # token: 5 wrong answers have 2 each


def test_a_described_loop() -> None:
    table = {
        "loss": {"policy": "sequence_mean", "kl": "token_mean"},
        "supervised": {"nll": "packed_row_mean", "old": "micro_token_mean"},
        "evaluation": {"accuracy": "task_macro"},
        "counted": {"truncated": "wrong", "unparsed": "apart", "ties": "first"},
        "why": {"nll": "rows are full", "accuracy": "tasks are the unit"},
    }
    found = TRAINERS["loop"]("loop.toml", table)
    assert [row.formula for row in found.denominators] == [
        "omega_i = 1 / (N * |o_i|)",
        "omega = 1 / sum_i |o_i|",
        SUPERVISED["packed_row_mean"].formula,
        SUPERVISED["micro_token_mean"].formula,
    ]
    assert found.denominators[3].cut.startswith("no")
    (accuracy,) = found.averages
    assert accuracy.formula == AVERAGES["task_macro"].formula
    assert accuracy.counted == {"truncated": "wrong", "unparsed": "apart", "ties": "first"}
    assert found.unreasoned == ["why.policy", "why.kl", "why.old"]


def test_a_described_rule_says_whether_it_depends_on_the_cut() -> None:
    table = {"loss": dict(zip(RULES, RULES, strict=True)), "supervised": {f"sft {rule}": rule for rule in SUPERVISED}}
    found = TRAINERS["loop"]("loop.toml", table).denominators
    assert {row.term for row in found if row.cut.startswith("no: ")} == {"padded", "sft micro_token_mean"}
    assert {row.cut for row in found if not row.cut.startswith("no: ")} == {
        "yes, where the whole optimiser step is counted"
    }
    (padded,) = (row for row in found if row.term == "padded")
    assert padded.accumulation == padded.world == "the padded width is that of what is forwarded together"


def test_every_rule_can_be_described() -> None:
    for section, rules in {"supervised": SUPERVISED, "evaluation": AVERAGES}.items():
        for rule in rules:
            found = TRAINERS["loop"]("f", {section: {"term": rule}})
            assert [row.formula for row in (*found.denominators, *found.averages)] == [rules[rule].formula]
    for how in COUNTED:
        assert TRAINERS["loop"]("f", {"evaluation": {"a": "micro"}, "counted": {"cut": how}}).averages
    for how in TIES:
        assert TRAINERS["loop"]("f", {"evaluation": {"a": "vote"}, "counted": {"ties": how}}).averages


def test_the_page_names_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    for rules in (RULES, SUPERVISED, AVERAGES, COUNTED, TIES):
        assert [rule for rule in rules if f"`{rule}`" not in page] == []
