"""Constants that are a paper's, found on its model and length of answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Constants by name, with whose they are and where they were found to work."""

    values: Mapping[str, float]
    source: str


CLIPPED = (
    Constants({"low": 0.2, "high": 0.2}, "PPO's (arXiv 1707.06347, continuous control)"),
    Constants({"low": 0.2, "high": 0.28}, "DAPO's (arXiv 2503.14476, Qwen2.5-32B, answers of up to 20480 tokens)"),
    Constants({"low": 3e-4, "high": 4e-4}, "GSPO's (arXiv 2507.18071, a 30B mixture of experts, a sequence's ratio)"),
)
DPPO = "of the authors' script for DPPO (arXiv 2602.04879)"

#: By the surrogate, mask or term that they belong to.
PAPERS: dict[str, tuple[Constants, ...]] = {
    "clipped": CLIPPED,
    "two_sided": (*CLIPPED, Constants({"delta": 4.0}, "INTELLECT-2's (arXiv 2505.07291, a 32B model)")),
    "dual_clip": (*CLIPPED, Constants({"c": 3.0}, "dual-clip PPO's (arXiv 1912.09729, a game)")),
    "cispo": (Constants({"ceiling": 5.0}, "of TRL's documentation: CISPO's paper (arXiv 2506.13585) gives none"),),
    "dppo_tv": (Constants({"low": 0.15, "high": 0.15}, DPPO),),
    "dppo_kl": (Constants({"low": 0.05, "high": 0.05}, DPPO),),
    "gmpo": (Constants({"low": 0.4, "high": 0.4}, "GMPO's (arXiv 2507.20673)"),),
    "sapo": (Constants({"tau_pos": 1.0, "tau_neg": 1.05}, "SAPO's (arXiv 2511.20347)"),),
    "vespo": (
        Constants({"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}, "VESPO's (arXiv 2602.10693)"),
    ),
    "clip_cov": (Constants({"fraction": 2e-4, "low": 1.0, "high": 5.0}, "Clip-Cov's (arXiv 2505.22617, 7B and 32B)"),),
    "kl_cov": (
        Constants({"fraction": 2e-4}, "KL-Cov's for its 32B model (arXiv 2505.22617)"),
        Constants({"coef": 1.0}, "KL-Cov's (arXiv 2505.22617)"),
        Constants({"coef": 0.1}, "of verl's configuration of KL-Cov"),
    ),
    "critic": (Constants({"value_clip": 0.2}, "OpenAI baselines' for PPO, in the unit of the rewards there"),),
}


def paper_notices(kind: str, constants: Mapping[str, object]) -> list[str]:
    """A notice for all constants of `kind` that are a paper's; those of an unknown kind are nobody's."""
    return [
        f"{kind}: {_shown(paper.values)}: {'they are' if len(paper.values) > 1 else 'it is'} {paper.source}. The "
        "mechanism transfers, the number does not: it depends on the model, the answers' length and the steps per "
        "batch. Look at how much it cuts (clip_ratio) and set it anew."
        for paper in PAPERS.get(kind, ())
        if all(constants.get(name) == value for name, value in paper.values.items())
    ]


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
