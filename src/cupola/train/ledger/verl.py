"""verl 0.9.1's denominators from its hydra keys. Source: `core_algos.agg_loss`, `workers/utils/losses.ppo_loss`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cupola.core.config.section import MOST
from cupola.train.ledger.constants import paper_notices
from cupola.train.ledger.explained import Average, Denominator, Explanation, cancelled, paired
from cupola.train.ledger.keys import Key, count, flag, read, real, text
from cupola.train.ledger.rules import RULES
from cupola.train.ledger.scales import UNDIVIDED, WHITENED, Divisor, group_std, scale

TOKEN_MEAN = Average(
    rule="token_mean",
    formula="omega = 1 / sum_i |o_i|",
    scope="the tokens of the mini-batch (one optimiser step) on all ranks",
    value=lambda n: None,
    accumulation="does not change it: micro-batches return their part of one sum",
    world="does not change it: counts are summed over ranks, and the loss is multiplied by their number",
    cut="yes",
)
SEQUENCES = "the nominal ppo_mini_batch_size * n answers: a fully masked one leaves the numerator alone"
TOKEN_SUM = replace(TOKEN_MEAN, rule="token_sum", formula="omega = 1", scope="nothing", value=lambda n: 1)
SEQ_SUM = replace(
    TOKEN_MEAN,
    rule="sequence_sum",
    formula="omega = 1 / (M * n)",
    scope=SEQUENCES,
    value=lambda numbers: numbers["M"] * numbers["n"],
)
SEQ_MEAN = replace(SEQ_SUM, rule="sequence_mean", formula="omega_i = 1 / (M * n * |o_i|)")
SEQ_NORM = replace(
    SEQ_SUM,
    rule="constant",
    formula="omega = 1 / (M * n * L)",
    value=lambda numbers: numbers["M"] * numbers["n"] * numbers["L"],
)
#: Without loss_scale_factor.
SEQ_WIDTH = replace(
    SEQ_SUM,
    rule="padded",
    formula="omega = 1 / (M * n * width)",
    scope=f"{SEQUENCES}; width: that of the padded mask, which changes with the batch",
    cut=f"no: {RULES['padded'].by_cut}",
)
#: The loss of geo_mean passes agg_loss by.
MICRO_MEAN = replace(
    SEQ_MEAN,
    formula="omega_i = 1 / (W * b * |o_i|)",
    scope="the b answers of one micro-batch on one rank",
    value=lambda numbers: None,
    accumulation="micro-batches' means are added up: the step grows with their number",
    world="ranks are averaged: each counts alike",
    cut="no: the mean is each micro-batch's own",
)

MODES = {
    "token-mean": TOKEN_MEAN,
    "token-sum": TOKEN_SUM,
    "seq-mean-token-sum": SEQ_SUM,
    "seq-mean-token-sum-norm": SEQ_NORM,
    "seq-mean-token-mean": SEQ_MEAN,
}
#: Losses whose policy term does not follow loss_agg_mode.
FORCED = {"sapo": SEQ_MEAN, "geo_mean": MICRO_MEAN}
SELECTING = "no: the tokens are chosen by covariance within each micro-batch"
#: Losses that select tokens within a micro-batch.
CUTS = {"clip_cov": SELECTING, "kl_cov": SELECTING}
#: Each loss with the surrogates and masks whose constants it takes.
LOSSES: dict[str, tuple[str, ...]] = {
    "vanilla": ("dual_clip",),
    "gspo": ("clipped",),
    "sapo": ("sapo",),
    "gpg": (),
    "clip_cov": ("clipped", "clip_cov"),
    "kl_cov": ("kl_cov",),
    "geo_mean": ("gmpo",),
    "cispo": ("clipped",),
    "dppo_tv": ("dppo_tv",),
    "dppo_kl": ("dppo_kl",),
    "dro": (),
    "bypass_mode": (),
}

GROUP = group_std(1e-6)
PER_REWARD = replace(
    WHITENED, formula="A = whiten_tokens(sum_k w_k * (r_k - mean_g) / (std_g + 1e-06))", scope="each reward's group"
)
#: Estimator to its divisor, and to that without norm_adv_by_std_in_grpo.
ESTIMATORS: dict[str, tuple[Divisor, Divisor]] = {
    **dict.fromkeys(("grpo", "grpo_vectorized", "grpo_passk"), (GROUP, UNDIVIDED)),
    **dict.fromkeys(("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"), (WHITENED, WHITENED)),
    "gdpo": (PER_REWARD, PER_REWARD),
    **dict.fromkeys(
        ("rloo", "rloo_vectorized", "remax", "opo", "gpg", "optimal_token_baseline", "tir_optimal_token_baseline"),
        (UNDIVIDED, UNDIVIDED),
    ),
}
ACTOR = "actor_rollout_ref.actor."
KEYS: dict[str, Key] = {
    f"{ACTOR}loss_agg_mode": text("token-mean", MODES),
    f"{ACTOR}policy_loss.loss_mode": text("vanilla", LOSSES),
    f"{ACTOR}loss_scale_factor": real(None),
    f"{ACTOR}ppo_mini_batch_size": count(256),
    "actor_rollout_ref.rollout.n": count(1),
    f"{ACTOR}use_kl_loss": flag(False),
    f"{ACTOR}kl_loss_coef": real(0.001),
    f"{ACTOR}entropy_coeff": real(0.0),
    f"{ACTOR}clip_ratio": real(0.2),
    f"{ACTOR}clip_ratio_low": real(0.2),
    f"{ACTOR}clip_ratio_high": real(0.2),
    f"{ACTOR}clip_ratio_c": real(3.0, least=1.0),
    f"{ACTOR}tau_pos": real(1.0),
    f"{ACTOR}tau_neg": real(1.05),
    f"{ACTOR}policy_loss.clip_cov_ratio": real(2e-4),
    f"{ACTOR}policy_loss.clip_cov_lb": real(1.0, least=-MOST),
    f"{ACTOR}policy_loss.clip_cov_ub": real(5.0, least=-MOST),
    f"{ACTOR}policy_loss.kl_cov_ratio": real(2e-4),
    f"{ACTOR}policy_loss.ppo_kl_coef": real(0.1),
    f"{ACTOR}grad_clip": real(1.0),
    f"{ACTOR}optim.optimizer": text("AdamW"),
    "critic.loss_agg_mode": Key(None, (str,), MODES),
    "critic.ppo_mini_batch_size": count(None),
    "critic.loss_scale_factor": real(None),
    "algorithm.adv_estimator": text("gae", ESTIMATORS),
    "algorithm.norm_adv_by_std_in_grpo": flag(True),
    "algorithm.use_kl_in_reward": flag(False),
}
#: Clip-Cov's constants by verl's names.
DRAWN = {"fraction": "ratio", "low": "lb", "high": "ub"}
UNUSED = "clip_ratio is not used: clip_ratio_low and clip_ratio_high take its place."


def explain(place: str, table: Mapping[str, Any]) -> Explanation:
    """The denominators of a verl configuration, whose keys may be nested or dotted; errors as in `keys.read`."""
    found = read(place, table, KEYS)
    v = {key.removeprefix(ACTOR): value for key, value in found.values.items()}
    mode, loss, length = v["loss_agg_mode"], v["policy_loss.loss_mode"], v["loss_scale_factor"]
    numbers = {
        "M": v["ppo_mini_batch_size"],
        "n": v["actor_rollout_ref.rollout.n"],
        **({} if length is None else {"L": length}),
    }
    shared = _mode(mode, length)
    policy = FORCED.get(loss, shared)
    rows = [replace(policy, cut=CUTS.get(loss, policy.cut)).of("policy", f"{mode}, {loss}", numbers)]
    absent = {}
    if v["use_kl_loss"]:
        rows.append(shared.of("kl", mode, numbers))
    else:
        inside = "it stands in the reward" if v["algorithm.use_kl_in_reward"] else "use_kl_loss is false"
        absent["kl"] = inside
    if v["entropy_coeff"] > 0:
        rows.append(shared.of("entropy", mode, numbers))
    else:
        absent["entropy"] = "entropy_coeff is 0"
    estimator = v["algorithm.adv_estimator"]
    if estimator == "gae":
        rows.append(_value(v, mode, numbers))
    else:
        absent["value"] = f"the estimator {estimator} has no critic"
    with_std, without = ESTIMATORS[estimator]
    rows.append(scale(estimator, with_std if v["algorithm.norm_adv_by_std_in_grpo"] else without))
    optimizer = cancelled(v["optim.optimizer"], v["grad_clip"])
    return Explanation("verl 0.9.1", rows, absent, optimizer, _notices(v), found.record(), found.ignored)


def _mode(mode: str, length: float | None) -> Average:
    return SEQ_WIDTH if MODES[mode] is SEQ_NORM and length is None else MODES[mode]


def _value(v: Mapping[str, Any], mode: str, actor: Mapping[str, float]) -> Denominator:
    """The critic's own mode and sizes, which are the actor's unless they are given."""
    own = v["critic.loss_agg_mode"] or mode
    given = {"M": v["critic.ppo_mini_batch_size"], "L": v["critic.loss_scale_factor"]}
    numbers = {**actor, **{name: number for name, number in given.items() if number is not None}}
    return _mode(own, numbers.get("L")).of("value", own, numbers, "Half the mean: the squared error is halved.")


def _notices(v: Mapping[str, Any]) -> list[str]:
    low, high = v["clip_ratio_low"], v["clip_ratio_high"]
    clip = {"low": low, "high": high, "c": v["clip_ratio_c"], "tau_pos": v["tau_pos"], "tau_neg": v["tau_neg"]}
    drawn = {name: v[f"policy_loss.clip_cov_{key}"] for name, key in DRAWN.items()}
    paying = {"fraction": v["policy_loss.kl_cov_ratio"], "coef": v["policy_loss.ppo_kl_coef"]}
    constants = {"clip_cov": drawn, "kl_cov": paying}
    return [
        "Dead groups stay in every count, unless algorithm.filter_groups leaves them out of the batch.",
        *(
            notice
            for kind in LOSSES[v["policy_loss.loss_mode"]]
            for notice in paper_notices(kind, constants.get(kind, clip))
        ),
        *paired([((v["clip_ratio"],) * 2 != (low, high), UNUSED)]),
    ]
