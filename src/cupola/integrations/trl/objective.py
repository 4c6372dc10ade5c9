"""The objective in TRL 1.16's arguments: each key is mapped exactly, or refused by name.

Source: `GRPOTrainer._compute_loss` and `_generate_and_score_completions`. That equal arguments mean an equal loss and
gradient is tested for every `trl:` preset in tests/objectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.core.config import FunctionReward
from cupola.core.records import RecipeError
from cupola.integrations.trl.rules import Arguments, Asked, Rule, choice, only, ours, refusal, to

#: TRL's loss by surrogate, denominator rule and what that counts over.
LOSSES: Mapping[tuple[str, str, str], str] = {
    ("clipped", "sequence_mean", "update"): "grpo",
    ("clipped", "constant", "update"): "dr_grpo",
    ("clipped", "sequence_sum", "update"): "luspo",
    ("clipped", "token_mean", "generation"): "dapo",
    ("clipped", "token_mean", "micro_batch"): "bnpo",
    ("cispo", "token_mean", "generation"): "cispo",
    ("sapo", "sequence_mean", "update"): "sapo",
    ("vespo", "token_mean", "generation"): "vespo",
}
#: `delta` makes the clip two-sided; the loss stays.
FAMILY = {"two_sided": "clipped"}

NEAREST = {
    "prompt_mean": "'trl:dapo' pools all tokens of the generation",
    "token_sum": "'trl:luspo' divides by the number of rollouts",
    "padded": "'trl:dr_grpo' divides by sampling.max_tokens",
}


def _kind(asked: Asked) -> str:
    kind = asked.objective.surrogate.kind
    return FAMILY.get(kind, kind)


def surrogate(asked: Asked, key: str, value: Any) -> Arguments:
    """The clip and its constants."""
    v = value.model_dump()
    match value.kind:
        case "clipped":
            return {"epsilon": v["low"], "epsilon_high": v["high"]}
        case "two_sided":
            return {"epsilon": v["low"], "epsilon_high": v["high"], "delta": v["delta"]}
        case "cispo":
            if v["floor"]:
                raise refusal(f"{key}.floor", v["floor"], "'trl:cispo' has a ceiling alone, so take 0")
            return {"epsilon_high": v["ceiling"]}
        case "sapo":
            return {"sapo_temperature_pos": v["tau_pos"], "sapo_temperature_neg": v["tau_neg"]}
        case "vespo":
            return {f"vespo_{name}": v[name] for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")}
    raise refusal(f"{key}.kind", value.kind, "it has 'clipped', 'two_sided', 'cispo', 'sapo' and 'vespo'")


def ratio(asked: Asked, key: str, value: str) -> Arguments:
    """TRL's vespo makes the product of the ratios itself, from those of the tokens."""
    if _kind(asked) == "vespo":
        return {"importance_sampling_level": "token"}
    if value not in ("token", "sequence"):
        raise refusal(key, value, "it has 'token' and 'sequence', and 'sequence_product' in 'trl:vespo'")
    return {"importance_sampling_level": value}


def denominator(asked: Asked, key: str, value: str) -> Arguments:
    """The loss whose rule this is, if what it counts over is what the recipe counts over."""
    scopes = {scope: loss for (kind, rule, scope), loss in LOSSES.items() if (kind, rule) == (_kind(asked), value)}
    if not scopes:
        rules = dict.fromkeys(rule for kind, rule, _ in LOSSES if kind == _kind(asked))
        has = f"with this surrogate it has {' and '.join(map(repr, rules))}"
        raise refusal(key, value, NEAREST.get(value, has) if _kind(asked) == "clipped" else has)
    own = asked.objective.scope
    equal = asked.cut.equal_scopes(own, value)
    loss = scopes.get(own) or next((loss for scope, loss in scopes.items() if scope in equal), None)
    if loss is None:
        raise refusal(
            "objective.scope",
            own,
            f"with denominator {value!r} and {asked.cut.minibatches} optim.minibatches it counts over "
            f"{' or '.join(map(repr, scopes))}",
        )
    if loss == "bnpo":
        _needs_rows(asked, "objective.scope")
    return {"loss_type": loss}


def _needs_rows(asked: Asked, key: str) -> None:
    """A mean over the tokens of each micro-batch depends on the cut, and TRL has none by tokens."""
    if asked.cut.pieces > 1 and not asked.cut.fixed:
        raise RecipeError(
            f"optim.micro_rollouts: is needed, for {key} = 'micro_batch' counts by micro-batch and TRL cuts those by "
            f"rollouts; with {asked.cut.rows} it would take {asked.cut.pieces} to an optimiser step"
        )


def count(asked: Asked, key: str, value: str) -> Arguments:
    """TRL counts every rollout; that is the surviving ones where none can leave."""
    objective = asked.objective
    if value == "nominal":
        return {}
    if any(isinstance(part, FunctionReward) for part in asked.recipe.reward):
        raise refusal(
            key, value, "a reward function may leave rollouts without a reward, and TRL counts those: 'nominal'"
        )
    if objective.mask_truncated and objective.denominator != "token_mean":
        raise refusal(key, value, "with mask_truncated TRL still counts the rollouts that it masks: 'nominal'")
    return {}


def combine(asked: Asked, key: str, value: str) -> Arguments:
    """GDPO: each part normalised apart, then all advantages divided by their spread."""
    if value == "sum":
        return {}
    if asked.objective.scale != "group_std":
        raise refusal(key, value, "where parts stand apart TRL divides each by its 'group_std'")
    weights = [part.weight for part in asked.recipe.reward]
    return {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": weights}


def whiten(asked: Asked, key: str, value: str) -> Arguments:
    apart = asked.objective.combine == "apart"
    if value != ("rollouts" if apart else "none"):
        raise refusal(
            key, value, "it divides all advantages by their spread exactly where combine = 'apart': 'rollouts'"
        )
    return {}


def correction(asked: Asked, key: str, value: Any) -> Arguments:
    """TRL weighs vLLM's samples alone, unless told not to; its sequence level is the product of the ratios."""
    if value.level == "none":
        return {"vllm_importance_sampling_correction": False} if asked.vllm else {}
    if not asked.vllm:
        raise refusal(f"{key}.level", value.level, "it corrects vLLM's samples alone: run.trl.use_vllm = true")
    if value.level == "sequence":
        raise refusal(f"{key}.level", value.level, "it has 'token' and 'sequence_product'")
    if _kind(asked) == "vespo":
        raise refusal(f"{key}.level", value.level, "'trl:vespo' takes it into its own weight; take 'none'")
    return {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": f"{value.level.removesuffix('_product')}_{value.bound}",
        "vllm_importance_sampling_clip_min": value.low or None,
        "vllm_importance_sampling_clip_max": value.high,
    }


def masks(asked: Asked, key: str, value: Any) -> Arguments:
    """Off-policy rollouts and tokens of low entropy; the latter by micro-batch, so the step must be one."""
    for name in ("reject", "clip_cov", "kl_cov"):
        if getattr(value, name) is not None:
            raise refusal(f"{key}.{name}", getattr(value, name), "it has masks.off_policy and masks.top_entropy")
    if value.top_entropy < 1:
        if asked.cut.pieces > asked.cut.processes:
            raise refusal(
                f"{key}.top_entropy",
                value.top_entropy,
                f"it ranks the tokens of each micro-batch of {asked.cut.rows} rollouts, not those of the optimiser "
                "step; raise optim.micro_rollouts or optim.micro_tokens",
            )
        if "entropy" in asked.objective.terms:
            raise refusal(f"{key}.top_entropy", value.top_entropy, "its entropy bonus would be masked too; keep one")
    return {"off_policy_mask_threshold": value.off_policy, "top_entropy_quantile": value.top_entropy}


def _has_kl(asked: Asked) -> bool:
    return asked.objective.beta > 0


def kl_ratio(asked: Asked, key: str, value: str) -> Arguments:
    """The KL is multiplied by the ratio that is clipped, or by none."""
    level = "token" if _kind(asked) == "vespo" else asked.objective.ratio
    if _has_kl(asked) and value not in ("none", level):
        raise refusal(key, value, f"it has 'none', or the policy term's own level {level!r}")
    return {"use_bias_correction_kl": value != "none"}


def kl_denominator(asked: Asked, key: str, value: str | None) -> Arguments:
    own = asked.objective.denominator
    if _has_kl(asked) and value not in (None, own):
        raise refusal(key, value, f"its KL stands inside the policy term and is averaged with it: {own!r}")
    return {}


def reference(asked: Asked, key: str, value: Any) -> Arguments:
    """A copy of the start, or the model with its adapter off, is what TRL takes by itself."""
    if value.kind != "moving":
        return {}
    return {"sync_ref_model": True, "ref_model_sync_steps": value.every, "ref_model_mixup_alpha": value.mixup}


def entropy_denominator(asked: Asked, key: str, value: str | None) -> Arguments:
    """Whatever the loss, the bonus is each micro-batch's own token mean."""
    term = asked.objective.terms.get("entropy")
    if term is None:
        return {}
    if term.denominator != "token_mean":
        raise refusal(key, term.denominator, "its entropy bonus is a 'token_mean' over each micro-batch")
    if "micro_batch" not in asked.cut.equal_scopes(term.scope, term.denominator):
        raise refusal("objective.entropy_scope", term.scope, "its entropy bonus is averaged over each 'micro_batch'")
    _needs_rows(asked, "objective.entropy_scope")
    return {}


def adaptive_entropy(asked: Asked, key: str, value: Any) -> Arguments:
    if value is None:
        return {}
    return {
        "use_adaptive_entropy": True,
        "entropy_target": value.target,
        "entropy_coef_delta": value.step,
        "entropy_coef_min": value.low,
        "entropy_coef_max": value.high,
    }


#: Every key of the objective.
OBJECTIVE: Mapping[str, Rule] = {
    "preset": ours,  # a name; what it stands for is in the other keys
    "baseline": only("group_mean", "it has 'group_mean' alone"),
    "scale": choice(
        "scale_rewards",
        {"group_std": "group", "batch_std": "batch", "none": "none"},
        "it has 'group_std', 'batch_std' and 'none'",
    ),
    "scale_epsilon": only(1e-4, "it adds 0.0001", lambda asked: asked.objective.scale != "none"),
    "combine": combine,
    "transform": only("none", "it takes the rewards as they are: 'none'"),
    "pass_k": ours,  # of no use without a transform
    "whiten": whiten,
    "surrogate": surrogate,
    "ratio": ratio,
    "denominator": denominator,
    "kl_denominator": kl_denominator,
    "entropy_denominator": entropy_denominator,
    "value_denominator": ours,  # of no use without a critic
    "scope": ours,  # read with the denominator
    "entropy_scope": ours,  # read with the entropy's denominator
    "count": count,
    "count_dead": only(True, "it counts dead groups: true"),
    "correction": correction,
    "masks": masks,
    "mask_truncated": to("mask_truncated_completions"),
    "beta": to("beta"),
    "kl_in": only("loss", "its KL stands in the 'loss'", _has_kl),
    "kl_estimator": only("k3", "it has 'k3' alone", _has_kl),
    "kl_ratio": kl_ratio,
    "reference": reference,
    "critic": ours,  # of no use without the baseline
    "entropy_coef": to("entropy_coef"),
    "adaptive_entropy": adaptive_entropy,
    "why": ours,  # reasons, in words
}
