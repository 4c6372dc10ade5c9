"""OpenRLHF 0.11.2's denominators from its flags. Source: `models/loss.aggregate_loss`, `utils/loss_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cupola.train.ledger.constants import paper_notices
from cupola.train.ledger.explained import Average, Explanation, cancelled
from cupola.train.ledger.keys import Key, count, flag, pair, read, real, text
from cupola.train.ledger.scales import CENTRED, UNDIVIDED, WHITENED, Divisor, group_std, scale

TOKEN_MEAN = Average(
    rule="token_mean",
    formula="omega = 1 / sum_i |o_i|",
    scope="the tokens of the optimiser step on all ranks",
    value=lambda n: None,
    accumulation="does not change it: counts are of the whole step; only a last, partial step of a batch is still "
    "divided by the full number",
    world="does not change it: counts are summed over ranks, and the loss is multiplied by their number",
    cut="yes",
)
SEQ_MEAN = replace(
    TOKEN_MEAN,
    rule="sequence_mean",
    formula="omega_i = 1 / (N * |o_i|)",
    scope="the answers of the optimiser step on all ranks that have a token; N is less where some have none",
    value=lambda n: n["N"],
)
MODES = {"token-mean": TOKEN_MEAN, "seq-mean-token-mean": SEQ_MEAN}
#: Policy losses that set their own mode.
FORCED = {"gspo": "seq-mean-token-mean"}

CLAMPED = replace(WHITENED, formula="A <- (A - mean_tokens) / sqrt(max(var_tokens, 1e-08))")
ESTIMATORS: dict[str, tuple[Divisor, Divisor]] = {  # the divisor, and that under no_std_norm
    **dict.fromkeys(("gae", "reinforce", "reinforce_baseline"), (CLAMPED, CENTRED)),
    "group_norm": (group_std(1e-9), group_std(1e-9)),
    **dict.fromkeys(("rloo", "dr_grpo", "flash_reinforce"), (UNDIVIDED, UNDIVIDED)),
}
KEYS: dict[str, Key] = {
    "actor.loss_agg_mode": text("token-mean", MODES),
    "actor.policy_loss_type": text("ppo", ("ppo", "gspo")),
    "train.batch_size": count(128),
    "algo.advantage.estimator": text("gae", ESTIMATORS),
    "algo.advantage.no_std_norm": flag(False),
    "algo.kl.use_loss": flag(False),
    "algo.kl.init_coef": real(0.01),
    "actor.entropy_coef": real(None),
    "actor.eps_clip": real(0.2),
    "actor.eps_clip_low_high": pair(None),
    "actor.optim": text("adam", ("adam", "muon")),
    "actor.max_norm": real(1.0),
}


def explain(place: str, table: Mapping[str, Any]) -> Explanation:
    """The denominators of OpenRLHF's flags, nested or dotted, with or without `--`; errors as in `keys.read`."""
    found = read(place, {key.removeprefix("--"): value for key, value in table.items()}, KEYS)
    v = found.values
    mode = FORCED.get(v["actor.policy_loss_type"], v["actor.loss_agg_mode"])
    numbers = {"N": v["train.batch_size"]}
    rows, absent = [MODES[mode].of("policy", mode, numbers)], {}
    always = "The token mean, whatever the policy term's mode."
    if v["algo.kl.use_loss"] and v["algo.kl.init_coef"] > 0:
        rows.append(TOKEN_MEAN.of("kl", "token-mean", numbers, always))
    else:
        inside = "algo.kl.use_loss is false: it stands in the reward, each token's own, after the group's baseline"
        absent["kl"] = inside if v["algo.kl.init_coef"] > 0 else "algo.kl.init_coef is 0"
    if v["actor.entropy_coef"]:
        rows.append(TOKEN_MEAN.of("entropy", "token-mean", numbers, always))
    else:
        absent["entropy"] = "actor.entropy_coef is 0 or absent"
    estimator = v["algo.advantage.estimator"]
    if estimator == "gae":
        rows.append(TOKEN_MEAN.of("value", "token-mean", numbers, always))
    else:
        absent["value"] = f"the estimator {estimator} has no critic"
    rows.append(scale(estimator, ESTIMATORS[estimator][v["algo.advantage.no_std_norm"]]))
    low, high = v["actor.eps_clip_low_high"] or [v["actor.eps_clip"]] * 2
    notices = [
        "Dead groups stay in every count unless dynamic filtering drops them.",
        *paper_notices("clipped", {"low": low, "high": high}),
    ]
    optimizer = cancelled(v["actor.optim"], v["actor.max_norm"])
    return Explanation("OpenRLHF 0.11.2", rows, absent, optimizer, notices, found.record(), found.ignored)
