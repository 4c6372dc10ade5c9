"""Other trainers' denominators by hand, from their own formulas; faults named by file and key."""

import re
from typing import Any

import pytest

from cupola.core.records import RecipeError
from cupola.train.ledger import TRAINERS, Denominator, Explanation, cancelled, paper_notices, with_numbers


def row(found: Explanation, term: str) -> Denominator:
    return next(row for row in found.denominators if row.term == term)


def trl(**given: Any) -> Explanation:
    # B = 4, GA = 6, W = 2, L_max = 100
    base = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 6,
        "world_size": 2,
        "max_completion_length": 100,
    }
    return TRAINERS["trl"]("args.json", {**base, **given})


@pytest.mark.parametrize(
    ("loss", "value", "numbers", "cut"),
    [
        ("grpo", 48, "omega_i = 1 / (4 * 6 * 2 * |o_i|)", "only for micro-batches of equal size"),
        ("sapo", 48, "omega_i = 1 / (4 * 6 * 2 * |o_i|)", "only for micro-batches of equal size"),
        ("luspo", 48, "omega = 1 / (4 * 6 * 2)", "only for micro-batches of equal size"),
        ("dr_grpo", 4800, "omega = 1 / (4 * 6 * 2 * 100)", "only for micro-batches of equal size"),
        ("bnpo", 12, "omega = 1 / (6 * 2 * sum_{i in micro-batch} |o_i|)", "no"),
        ("dapo", 1, "omega = 1 / (N_gen * 6 / 6)", "yes"),
        ("cispo", 1, "omega = 1 / (N_gen * 6 / 6)", "yes"),
        ("vespo", 1, "omega = 1 / (N_gen * 6 / 6)", "yes"),
    ],
)
def test_trl_losses_where_generation_and_accumulation_agree(loss: str, value: int, numbers: str, cut: str) -> None:
    found = row(trl(loss_type=loss), "policy")
    assert found.value == value
    assert found.numbers == numbers
    assert found.cut.startswith(cut)


@pytest.mark.parametrize(
    ("loss", "value", "cut"),
    [
        ("grpo", 48, "only for"),
        ("sapo", 48, "only for"),
        ("luspo", 48, "only for"),
        ("dr_grpo", 4800, "only for"),
        ("bnpo", 12, "no"),
        ("dapo", 3, "in expectation only"),
        ("cispo", 3, "in expectation only"),
        ("vespo", 3, "in expectation only"),
    ],
)
def test_trl_losses_where_they_differ(loss: str, value: int, cut: str) -> None:
    found = row(trl(loss_type=loss, steps_per_generation=2), "policy")  # GA / spg = 6 / 2
    assert found.value == value
    assert found.cut.startswith(cut)


def test_trl_kl_follows_the_policy_and_entropy_the_micro_batch() -> None:
    found = trl(loss_type="dr_grpo", beta=0.04, entropy_coef=0.01)
    assert row(found, "kl").value == 4800
    assert row(found, "entropy").value == 12
    assert row(found, "entropy").cut.startswith("no")
    assert trl().absent == {"kl": "beta is 0", "entropy": "entropy_coef is 0"}


def test_trl_defaults_are_marked() -> None:
    found = TRAINERS["trl"]("args.json", {"loss_type": "grpo", "learning_rate": 1e-6})
    assert row(found, "policy").value == 8
    assert found.read["loss_type"] == {"value": "grpo", "from": "file"}
    assert found.read["per_device_train_batch_size"] == {"value": 8, "from": "default"}
    assert found.ignored == ["learning_rate"]


def test_trl_dump_gives_the_number_of_ranks() -> None:
    dump = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "generation_batch_size": 48}
    assert row(TRAINERS["trl"]("a", {**dump, "loss_type": "grpo"}), "policy").value == 4 * 1 * 4
    alone = {"per_device_train_batch_size": 4, "generation_batch_size": 16, "gradient_accumulation_steps": 2}
    assert row(TRAINERS["trl"]("a", alone), "policy").numbers == "omega = 1 / (N_gen * 2 / 4)"


@pytest.mark.parametrize(
    ("given", "formula"),
    [
        ("group", "A = (r - b) / (std_g + 0.0001)"),
        (True, "A = (r - b) / (std_g + 0.0001)"),
        ("batch", "A = (r - b) / (std_batch + 0.0001)"),
        (False, "A = r - b"),
        ("none", "A = r - b"),
    ],
)
def test_trl_scale(given: object, formula: str) -> None:
    assert row(trl(scale_rewards=given), "scale").formula == formula


def test_trl_masks_take_numerators_only() -> None:
    words = row(trl(top_entropy_quantile=0.2, off_policy_mask_threshold=0.5), "policy").words
    assert sum("stays in the denominator" in word for word in words) == 2


ACTOR = "actor_rollout_ref.actor."


@pytest.mark.parametrize(
    ("mode", "factor", "value", "numbers", "cut"),
    [
        ("token-mean", None, None, "omega = 1 / sum_i |o_i|", "yes"),
        ("token-sum", None, 1, "omega = 1", "yes"),
        ("seq-mean-token-sum", None, 512, "omega = 1 / (64 * 8)", "yes"),
        ("seq-mean-token-sum-norm", 1000, 512000, "omega = 1 / (64 * 8 * 1000)", "yes"),
        ("seq-mean-token-sum-norm", None, 512, "omega = 1 / (64 * 8 * width)", "no"),
        ("seq-mean-token-mean", None, 512, "omega_i = 1 / (64 * 8 * |o_i|)", "yes"),
    ],
)
def test_verl_modes(mode: str, factor: int | None, value: int | None, numbers: str, cut: str) -> None:
    table = {
        f"{ACTOR}loss_agg_mode": mode,
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 64, "loss_scale_factor": factor, "use_kl_loss": True},
            "rollout": {"n": 8},
        },
        f"{ACTOR}entropy_coeff": 0.01,
        "algorithm.adv_estimator": "grpo",
    }
    found = TRAINERS["verl"]("v.json", table)
    for term in ("policy", "kl", "entropy"):
        assert row(found, term).value == value
        assert row(found, term).numbers == numbers
        assert row(found, term).cut.startswith(cut)
    assert row(found, "scale").formula == "A = (r - b) / (std_g + 1e-06)"


def test_verl_without_a_length_weighs_by_the_padded_width() -> None:
    found = row(TRAINERS["verl"]("v.json", {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}), "policy")
    assert found.words[0].startswith("Every token of a micro-batch counts alike, and the less the longer the longest")
    assert found.cut == "no: the padded width is that of what is forwarded together"


@pytest.mark.parametrize(
    ("loss", "rule", "cut"),
    [
        ("sapo", "omega_i = 1 / (256 * 1 * |o_i|)", "yes"),
        ("geo_mean", "omega_i = 1 / (W * b * |o_i|)", "no"),
        ("clip_cov", "omega = 1 / sum_i |o_i|", "no"),
        ("kl_cov", "omega = 1 / sum_i |o_i|", "no"),
    ],
)
def test_verl_losses_that_set_their_own(loss: str, rule: str, cut: str) -> None:
    found = TRAINERS["verl"]("v.json", {f"{ACTOR}policy_loss.loss_mode": loss, f"{ACTOR}use_kl_loss": True})
    assert row(found, "policy").numbers == rule
    assert row(found, "policy").cut.startswith(cut)
    assert row(found, "kl").numbers == "omega = 1 / sum_i |o_i|"


@pytest.mark.parametrize(
    ("given", "numbers", "value"),
    [
        ({"actor.loss_agg_mode": "token-mean"}, "omega = 1 / sum_i |o_i|", None),
        ({"actor.loss_agg_mode": "seq-mean-token-mean"}, "omega_i = 1 / (32 * |o_i|)", 32),
        ({"actor.policy_loss_type": "gspo"}, "omega_i = 1 / (32 * |o_i|)", 32),
        ({"actor": {"policy_loss_type": "gspo"}}, "omega_i = 1 / (32 * |o_i|)", 32),
        ({"--actor.policy_loss_type": "gspo"}, "omega_i = 1 / (32 * |o_i|)", 32),
    ],
)
def test_openrlhf_modes(given: dict[str, Any], numbers: str, value: int | None) -> None:
    more = {"train.batch_size": 32, "algo.kl.use_loss": True, "actor.entropy_coef": 0.01}
    found = TRAINERS["openrlhf"]("o.json", {**more, **given})
    assert row(found, "policy").numbers == numbers
    assert row(found, "policy").value == value
    assert row(found, "kl").numbers == row(found, "entropy").numbers == "omega = 1 / sum_i |o_i|"


@pytest.mark.parametrize(
    ("estimator", "no_std", "formula"),
    [
        ("group_norm", False, "A = (r - b) / (std_g + 1e-09)"),
        ("dr_grpo", False, "A = r - b"),
        ("gae", False, "A <- (A - mean_tokens) / sqrt(max(var_tokens, 1e-08))"),
        ("gae", True, "A <- A - mean_tokens"),
    ],
)
def test_openrlhf_scale(estimator: str, no_std: bool, formula: str) -> None:
    given = {"algo.advantage.estimator": estimator, "algo.advantage.no_std_norm": no_std}
    assert row(TRAINERS["openrlhf"]("o.json", given), "scale").formula == formula


@pytest.mark.parametrize(
    ("trainer", "table", "said"),
    [
        ("trl", {"loss_type": "gpro"}, "f: loss_type: should be one of grpo, sapo, bnpo"),
        ("trl", {"beta": "high"}, "f: beta: should be a finite number, got 'high'"),
        ("trl", {"beta": float("nan")}, "f: beta: should be a finite number, got nan"),
        ("trl", {"num_generations": True}, "f: num_generations: should be a whole number, got True"),
        ("trl", {"num_generations": 1}, "f: num_generations: should be at least 2, got 1"),
        ("trl", {"num_generations": 3}, "f: num_generations: 3 does not divide the 8 answers"),
        ("trl", {"scale_rewards": "std"}, "f: scale_rewards: should be one of group, batch, none, True, False"),
        ("trl", {"generation_batch_size": 12}, "f: generation_batch_size: 12 is no multiple of 8"),
        (
            "trl",
            {"per_device_train_batch_size": "8"},
            "f: per_device_train_batch_size: should be a whole number, got '8'",
        ),
        ("trl", {"per_device_train_batch_size": -8}, "f: per_device_train_batch_size: should be at least 1, got -8"),
        ("trl", {"max_completion_length": 10**400}, "f: max_completion_length: no size or constant is beyond 1e+12"),
        ("trl", {"beta": 10**400}, "f: beta: no size or constant is beyond 1e+12"),
        ("trl", {"packing": "yes"}, "f: packing: should be true or false, got 'yes'"),
        ("trl", {"packing": True, "loss_type": "mean"}, "f: loss_type: should be one of nll, dft, chunked_nll"),
        (
            "trl",
            {"packing": True, "num_generations": 8},
            "f: num_generations: is GRPOConfig's, but packing is SFTConfig's",
        ),
        ("trl", {"loss_type": "dft", "beta": 0.1}, "f: beta: is GRPOConfig's, but loss_type is SFTConfig's; keep one"),
        ("verl", {"actor_rollout_ref.rollout.n": 0}, "f: actor_rollout_ref.rollout.n: should be at least 1, got 0"),
        ("openrlhf", {"train.batch_size": "128"}, "f: train.batch_size: should be a whole number, got '128'"),
        ("loop", {}, "f: names no term; give one below loss, supervised or evaluation"),
        ("loop", {"losses": {"a": "b"}}, "f: losses: unknown section; there are loss, supervised, evaluation"),
        ("loop", {"loss": "token_mean"}, "f: loss: is a table of keys, got 'token_mean'"),
        ("loop", {"loss": {"policy": "mean"}}, "f: loss.policy: should be one of sequence_mean, token_mean"),
        ("loop", {"loss": {"policy": 1}}, "f: loss.policy: should be text, got 1"),
        ("loop", {"loss": {"policy": "constant"}, "why": {"kl": "so"}}, "f: kl: should be one term of one section"),
        ("loop", {"loss": {"l": "constant"}, "supervised": {"l": "token_mean"}}, "f: l: should be one term of one"),
        (
            "loop",
            {"evaluation": {"a": "micro"}, "counted": {"ties": "judged"}},
            "f: counted.ties: should be one of shared",
        ),
        ("trl", {"lr": 1}, "f: has none of the keys that bear on a denominator, such as loss_type"),
        ("verl", {f"{ACTOR}loss_agg_mode": "mean"}, f"f: {ACTOR}loss_agg_mode: should be one of token-mean"),
        ("verl", {f"{ACTOR}use_kl_loss": 1}, f"f: {ACTOR}use_kl_loss: should be true or false, got 1"),
        ("verl", {"a.b": 1, "a": {"b": 2}}, "f: a.b: stands there twice; keep one"),
        ("openrlhf", {"actor.eps_clip_low_high": [0.2]}, "f: actor.eps_clip_low_high: should be a list of two numbers"),
    ],
)
def test_faults_name_file_and_key(trainer: str, table: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(said)):
        TRAINERS[trainer]("f", table)


def test_names_without_a_number_stay() -> None:
    assert with_numbers("omega = 1 / (N * L_max)", {"N": 256}) == "omega = 1 / (256 * L_max)"


@pytest.mark.parametrize(
    ("kind", "constants", "whose"),
    [
        ("clipped", {"low": 3e-4, "high": 4e-4}, ["GSPO's"]),
        ("clipped", {"low": 0.2, "high": 0.28}, ["DAPO's"]),
        ("clipped", {"low": 0.1, "high": 0.3}, []),
        ("two_sided", {"low": 0.2, "high": 0.2, "delta": 4.0}, ["PPO's", "INTELLECT-2's"]),
        ("dual_clip", {"low": 0.1, "high": 0.2, "c": 3.0}, ["dual-clip PPO's"]),
        ("cispo", {"ceiling": 5.0, "floor": 0.0}, ["of TRL's documentation"]),
        ("cispo", {"ceiling": 4.0, "floor": 0.0}, []),
        ("dppo_tv", {"low": 0.15, "high": 0.15, "ceiling": 7.0}, ["of the authors' script for DPPO"]),
        ("dppo_kl", {"low": 0.15, "high": 0.15}, []),
        ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, ["SAPO's"]),
        ("clip_cov", {"fraction": 2e-4, "low": 1.0, "high": 5.0}, ["Clip-Cov's"]),
        ("kl_cov", {"fraction": 2e-4, "coef": 1.0}, ["KL-Cov's for its 32B model", "KL-Cov's"]),
        ("critic", {"value_clip": 0.0}, []),
        ("reinforce", {}, []),
    ],
)
def test_notices_only_for_a_papers_numbers(kind: str, constants: dict[str, Any], whose: list[str]) -> None:
    found = paper_notices(kind, constants)
    assert len(found) == len(whose)
    for notice, source in zip(found, whose, strict=True):
        assert source in notice
        assert "the mechanism transfers, the number does not" in notice.lower()


@pytest.mark.parametrize(
    ("trainer", "table", "kind"),
    [
        ("trl", {"loss_type": "cispo", "epsilon_high": 5.0}, "cispo"),
        ("trl", {"loss_type": "sapo"}, "sapo"),
        ("trl", {"loss_type": "vespo"}, "vespo"),
        ("trl", {"delta": 4.0}, "two_sided"),
        ("verl", {f"{ACTOR}policy_loss.loss_mode": "sapo"}, "sapo"),
        ("verl", {f"{ACTOR}policy_loss.loss_mode": "clip_cov"}, "clip_cov"),
        ("verl", {f"{ACTOR}policy_loss.loss_mode": "kl_cov"}, "kl_cov"),
        ("verl", {f"{ACTOR}policy_loss.loss_mode": "vanilla"}, "dual_clip"),
        ("openrlhf", {"actor.eps_clip_low_high": [0.2, 0.28]}, "clipped"),
    ],
)
def test_a_trainers_constants_by_our_names(trainer: str, table: dict[str, Any], kind: str) -> None:
    assert any(notice.startswith(f"{kind}: ") for notice in TRAINERS[trainer]("f", table).notices)


def test_only_an_estimator_with_a_critic_has_a_value_term() -> None:
    given = {
        f"{ACTOR}loss_agg_mode": "seq-mean-token-sum",
        "critic.loss_agg_mode": "seq-mean-token-mean",
        "critic.ppo_mini_batch_size": 16,
        "actor_rollout_ref.rollout.n": 2,
    }
    assert row(TRAINERS["verl"]("v", given), "value").numbers == "omega_i = 1 / (16 * 2 * |o_i|)"
    assert row(TRAINERS["verl"]("v", {"actor_rollout_ref.rollout.n": 2}), "value").numbers == "omega = 1 / sum_i |o_i|"
    assert row(TRAINERS["openrlhf"]("o", {"train.batch_size": 8}), "value").numbers == "omega = 1 / sum_i |o_i|"
    without = TRAINERS["openrlhf"]("o", {"algo.advantage.estimator": "rloo"})
    assert without.absent["value"] == "the estimator rloo has no critic"


# A batch of four answers of 3, 1, 2 and 0 tokens, padded to 4: the last is masked as a whole.
LOSSES = ([1.0, 2.0, 3.0], [4.0], [5.0, 6.0], [])
WIDTH = 4


def total(found: Denominator) -> float:
    """The loss of that batch as the formula says."""
    tokens = sum(map(len, LOSSES))
    return sum(loss * omega(found.numbers, len(answer), tokens) for answer in LOSSES for loss in answer)


def omega(formula: str, length: int, tokens: int) -> float:
    """A formula's value, from its own text."""
    text = formula.partition(" = ")[2].replace("sum_i |o_i|", str(tokens)).replace("|o_i|", str(length))
    text = text.replace("width", str(WIDTH))
    assert re.fullmatch(r"[\d ./*()]+", text), text
    return float(eval(text, {"__builtins__": {}}))


@pytest.mark.parametrize(
    ("mode", "factor", "worked"),
    [
        ("token-mean", None, 3.5),  # 21 / 6
        ("token-sum", None, 21.0),
        ("seq-mean-token-sum", None, 5.25),  # 21 / 4: the nominal count holds the masked answer
        ("seq-mean-token-sum-norm", 10, 0.525),  # 21 / 4 / 10
        ("seq-mean-token-sum-norm", None, 1.3125),  # 21 / 4 / 4, the padded width
        ("seq-mean-token-mean", None, 2.875),  # (2 + 4 + 5.5) / 4
    ],
)
def test_verl_modes_worked_by_hand(mode: str, factor: int | None, worked: float) -> None:
    given = {f"{ACTOR}loss_agg_mode": mode, f"{ACTOR}loss_scale_factor": factor, f"{ACTOR}ppo_mini_batch_size": 2}
    found = TRAINERS["verl"]("v", {**given, "actor_rollout_ref.rollout.n": 2})
    assert total(row(found, "policy")) == pytest.approx(worked, rel=1e-12)


@pytest.mark.parametrize(
    ("mode", "counted", "worked"),
    [
        ("token-mean", 4, 3.5),
        ("seq-mean-token-mean", 3, 11.5 / 3),  # answers without a token leave OpenRLHF's count
    ],
)
def test_openrlhf_modes_worked_by_hand(mode: str, counted: int, worked: float) -> None:
    found = TRAINERS["openrlhf"]("o", {"actor.loss_agg_mode": mode, "train.batch_size": counted})
    assert total(row(found, "policy")) == pytest.approx(worked, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "worked"),
    [
        ("grpo", 2.875),
        ("sapo", 2.875),
        ("luspo", 5.25),
        ("dr_grpo", 0.525),
    ],
)
def test_trl_losses_worked_by_hand(loss: str, worked: float) -> None:
    given = {"per_device_train_batch_size": 2, "world_size": 2, "max_completion_length": 10, "num_generations": 2}
    assert total(row(TRAINERS["trl"]("t", {**given, "loss_type": loss}), "policy")) == pytest.approx(worked, rel=1e-12)


def test_what_an_optimiser_cancels() -> None:
    assert cancelled("paged_adamw_8bit", 1.0).startswith("paged_adamw_8bit largely cancels")
    assert cancelled("sgd", 0.5).startswith("sgd keeps a constant factor of the whole loss; the clip at norm 0.5")
    assert "no gradient clip is set" in cancelled("sgd", 0.0)


def test_another_trainers_configuration_is_not_explained_as_grpo() -> None:
    with pytest.raises(RecipeError, match=r"^r.json: looks like an RLOOConfig; only GRPOConfig and SFTConfig"):
        TRAINERS["trl"]("r.json", {"num_generations": 4, "beta": 0.05, "normalize_advantages": False})
