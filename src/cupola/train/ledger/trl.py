"""TRL 1.16's denominators from the arguments of a GRPOConfig or an SFTConfig.

Source: `GRPOTrainer._compute_loss`, `GRPOConfig`; for SFTConfig see `trl_sft`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cupola.core.records import RecipeError
from cupola.train.ledger import trl_sft
from cupola.train.ledger.constants import paper_notices
from cupola.train.ledger.explained import Average, Explanation, cancelled, paired
from cupola.train.ledger.keys import Key, count, flag, read, real, text
from cupola.train.ledger.scales import ONCE_PER_REWARD, UNDIVIDED, batch_std, group_std, scale

MEAN = Average(
    rule="sequence_mean",
    formula="omega_i = 1 / (B * GA * W * |o_i|)",
    scope="the B answers of each of GA micro-batches on W ranks, fully masked answers included",
    value=lambda n: n["B"] * n["GA"] * n["W"],
    accumulation="GA multiplies the count: at the same B it makes a larger batch, and each answer counts less",
    world="W multiplies the count, as ranks are averaged: each answer counts less",
    cut="only for micro-batches of equal size",
)
SUM = replace(MEAN, rule="sequence_sum", formula="omega = 1 / (B * GA * W)")
CONSTANT = replace(
    MEAN,
    rule="constant",
    formula="omega = 1 / (B * GA * W * L_max)",
    value=lambda n: n["B"] * n["GA"] * n["W"] * n["L_max"],
)
LOCAL = Average(
    rule="token_mean",
    formula="omega = 1 / (GA * W * sum_{i in micro-batch} |o_i|)",
    scope="the tokens of one micro-batch on one rank",
    value=lambda n: n["GA"] * n["W"],
    accumulation="GA averages the micro-batches' own means: each counts alike, however many tokens it has",
    world="ranks are averaged: each counts alike, however many tokens it has",
    cut="no: a token counts more in a micro-batch that has few",
)
GLOBAL = Average(
    rule="token_mean",
    formula="omega = 1 / (N_gen * GA / spg)",
    scope="N_gen: the loss-mask tokens of the generation batch on all ranks, scaled by GA / spg to one optimiser step",
    value=lambda n: n["GA"] / n["spg"],
    accumulation="GA / spg scales the count to one optimiser step: exact where GA = spg, else in expectation only",
    world="does not change it: N_gen is summed over all ranks",
    cut="yes",
)
EXPECTED = replace(GLOBAL, cut="in expectation only: GA is not spg, so a step's tokens are not N_gen * GA / spg")

LOSSES = {
    "grpo": MEAN,
    "sapo": MEAN,
    "bnpo": LOCAL,
    "dr_grpo": CONSTANT,
    "dapo": GLOBAL,
    "cispo": GLOBAL,
    "vespo": GLOBAL,
    "luspo": SUM,
}
#: The surrogate of a loss that does not clip at epsilon.
SURROGATES = {"cispo": "cispo", "sapo": "sapo", "vespo": "vespo"}
SCALES = {"group": group_std(1e-4), "batch": batch_std(1e-4), "none": UNDIVIDED}
SPELLED: dict[object, str] = {True: "group", False: "none"}

KEYS: dict[str, Key] = {
    "loss_type": text("dapo", LOSSES),
    "per_device_train_batch_size": count(8),
    "gradient_accumulation_steps": count(1),
    "steps_per_generation": count(None),
    "generation_batch_size": count(None),
    "world_size": count(None),
    "num_generations": Key(8, (int,), least=2),
    "max_completion_length": count(512),
    "scale_rewards": Key("group", (str, bool), (*SCALES, *SPELLED)),
    "multi_objective_aggregation": text("sum_then_normalize", ("sum_then_normalize", "normalize_then_sum")),
    "importance_sampling_level": text("token", ("token", "sequence")),
    "beta": real(0.0),
    "use_bias_correction_kl": flag(True),
    "entropy_coef": real(0.0),
    "use_adaptive_entropy": flag(False),
    "top_entropy_quantile": real(1.0),
    "epsilon": real(0.2),
    "epsilon_high": real(None),
    "delta": real(None),
    "sapo_temperature_pos": real(1.0),
    "sapo_temperature_neg": real(1.05),
    "vespo_k_pos": real(2.0),
    "vespo_lambda_pos": real(3.0),
    "vespo_k_neg": real(3.0),
    "vespo_lambda_neg": real(2.0),
    "router_aux_loss_coef": real(None),
    "mask_truncated_completions": flag(False),
    "off_policy_mask_threshold": real(None),
    "use_vllm": flag(False),
    "vllm_importance_sampling_correction": flag(True),
    "optim": text("adamw_torch_fused"),
    "max_grad_norm": real(1.0),
}


#: Keys that only another trainer's configuration has.
STRANGERS = {
    "an RLOOConfig": {"normalize_advantages", "reward_clip_range"},
    "a DPOConfig": {"f_divergence_type", "ld_alpha", "label_smoothing", "use_weighting"},
}


def explain(place: str, table: Mapping[str, Any]) -> Explanation:
    """The denominators of a GRPOConfig, or of an SFTConfig where a key or loss is one's; `place` names the file.

    Raises RecipeError as `keys.read` does, and where keys of both stand together.
    """
    other = next((name for name, keys in STRANGERS.items() if keys & table.keys()), None)
    if other is not None:
        raise RecipeError(f"{place}: looks like {other}; only GRPOConfig and SFTConfig are explained")
    supervised = next((key for key in trl_sft.OWN if key in table), None)
    if supervised is None and table.get("loss_type") not in trl_sft.LOSSES:
        return _explain_grpo(place, table)
    own = next((key for key in KEYS if key in table and key not in trl_sft.KEYS), None)
    if own is not None:
        raise RecipeError(f"{place}: {own}: is GRPOConfig's, but {supervised or 'loss_type'} is SFTConfig's; keep one")
    return trl_sft.explain(place, table)


def _explain_grpo(place: str, table: Mapping[str, Any]) -> Explanation:
    found = read(place, table, KEYS)
    v = found.values
    numbers = _numbers(place, v)
    average = LOSSES[v["loss_type"]]
    if average is GLOBAL and numbers["GA"] != numbers["spg"]:
        average = EXPECTED
    rows, absent = [average.of("policy", v["loss_type"], numbers, *_masked(v))], {}
    if v["beta"] > 0:
        words = ["The KL is added inside the token's loss, after the masks, which therefore do not touch it."]
        rows.append(average.of("kl", v["loss_type"], numbers, *words))
    else:
        absent["kl"] = "beta is 0"
    if v["entropy_coef"] > 0 or v["use_adaptive_entropy"]:
        rows.append(LOCAL.of("entropy", "local token mean, whatever the loss_type", numbers))
    else:
        absent["entropy"] = "entropy_coef is 0"
    if v["router_aux_loss_coef"]:
        rows.append(trl_sft.AUXILIARY.of("aux", "micro-batch mean", numbers))
    rule = SPELLED.get(v["scale_rewards"], v["scale_rewards"])
    apart = v["multi_objective_aggregation"] == "normalize_then_sum"
    rows.append(scale("normalize_then_sum", ONCE_PER_REWARD) if apart else scale(rule, SCALES[rule]))
    optimizer = cancelled(v["optim"], v["max_grad_norm"])
    return Explanation("TRL 1.16, GRPOConfig", rows, absent, optimizer, _notices(v), found.record(), found.ignored)


def _numbers(place: str, v: Mapping[str, Any]) -> dict[str, float]:
    """B, GA, spg, W and L_max as GRPOConfig derives them; a dump of it has both sizes of a generation, which give W."""
    size, accumulation, whole = (
        v[key] for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size")
    )
    steps, world = v["steps_per_generation"], v["world_size"]
    if whole is not None:
        piece = size * (steps or world or 1)
        if whole % piece:
            raise RecipeError(f"{place}: generation_batch_size: {whole} is no multiple of {piece}, one piece of it")
        steps, world = (steps, whole // piece) if steps else (whole // piece, world)
    world = world or 1
    steps = steps or accumulation
    if size * steps * world % v["num_generations"]:
        raise RecipeError(
            f"{place}: num_generations: {v['num_generations']} does not divide the {size * steps * world} answers "
            "generated at once"
        )
    return {"B": size, "GA": accumulation, "spg": steps, "W": world, "L_max": v["max_completion_length"]}


def _masked(v: Mapping[str, Any]) -> list[str]:
    """Which masks take a token's numerator and leave it in the denominator."""
    return [
        f"{what} take numerators only: what they drop stays in the denominator, and the step shrinks with it."
        for what in paired(
            (
                (v["top_entropy_quantile"] < 1, "Tokens below the entropy quantile"),
                (v["off_policy_mask_threshold"] is not None, "Off-policy masks"),
                (v["use_vllm"] and v["vllm_importance_sampling_correction"], "Importance weights and masks of vLLM"),
            )
        )
    ]


def _notices(v: Mapping[str, Any]) -> list[str]:
    high = v["epsilon"] if v["epsilon_high"] is None else v["epsilon_high"]
    kind = v["loss_type"]
    surrogate = SURROGATES.get(kind, "clipped" if v["delta"] is None else "two_sided")
    vespo = {key.removeprefix("vespo_"): v[key] for key in v if key.startswith("vespo_")}
    constants = {
        "low": v["epsilon"],
        "high": high,
        "ceiling": high,
        "delta": v["delta"],
        "tau_pos": v["sapo_temperature_pos"],
        "tau_neg": v["sapo_temperature_neg"],
        **vespo,
    }
    return [
        "Dead groups stay in every count.",
        *paired(
            (
                (v["mask_truncated_completions"], "Cut answers leave the token counts but not the counts of answers."),
                (kind == "cispo", f"cispo caps the weight at epsilon_high itself ({high:g}), not at 1 + epsilon_high."),
                (v["beta"] > 0 and v["use_bias_correction_kl"], "The KL is multiplied by the importance ratio."),
            )
        ),
        *paper_notices(surrogate, constants),
    ]
