"""TRL 1.16's supervised denominators from SFTConfig arguments.

Source: `SFTTrainer.compute_loss`, `SFTConfig`; transformers 5's `Trainer.get_batch_samples` and `evaluation_loop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cupola.train.ledger.averages import SUPERVISED, Measure, measure
from cupola.train.ledger.explained import Average, Explanation, cancelled, paired
from cupola.train.ledger.keys import Key, count, flag, read, real, text

GLOBAL = Average(
    rule="token_mean",
    formula="omega = 1 / N_items",
    scope="N_items (num_items_in_batch): the target tokens of all micro-batches of the optimiser step on all ranks",
    value=lambda n: None,
    accumulation="does not change it: the tokens of the whole step are counted before the first forward",
    world="does not change it: counts are summed over ranks, and the loss is multiplied by their number",
    cut="yes",
    says=SUPERVISED["token_mean"].says,
)
PER_RANK = replace(
    GLOBAL,
    formula="omega = 1 / (W * N_rank)",
    scope="N_rank: the target tokens of all micro-batches of the optimiser step on one rank",
    value=lambda n: n["W"],
    world="W ranks are averaged: each counts alike, however many tokens it has",
    cut="yes on one rank; no between ranks",
)
#: The auxiliary loss of a mixture of experts.
AUXILIARY = Average(
    rule="micro-batch mean",
    formula="omega = 1 / (GA * W)",
    scope="GA micro-batches on each of W ranks",
    value=lambda n: n["GA"] * n["W"],
    accumulation="GA averages the micro-batches: each counts alike",
    world="ranks are averaged: each counts alike",
    cut="no: each micro-batch has one value, whatever it holds",
    says="Every micro-batch counts alike, whatever it holds.",
)

STRATEGIES = ("bfd", "bfd_split", "bfd-requeue", "wrapped")
#: Keys that only SFTConfig has.
OWN = ("packing", "packing_strategy", "padding_free", "completion_only_loss", "assistant_only_loss", "eval_packing")
LOSSES = ("nll", "dft", "chunked_nll")
KEYS: dict[str, Key] = {
    "loss_type": text("nll", LOSSES),
    "average_tokens_across_devices": flag(True),
    "packing": flag(False),
    "packing_strategy": text("bfd", STRATEGIES),
    "padding_free": flag(False),
    "max_length": Key(1024, (int,), least=1, absent=True),
    "completion_only_loss": Key(None, (bool,)),
    "assistant_only_loss": flag(False),
    "label_smoothing_factor": real(0.0),
    "router_aux_loss_coef": real(None),
    "per_device_train_batch_size": count(8),
    "gradient_accumulation_steps": count(1),
    "world_size": count(1),
    "eval_strategy": text("no", ("no", "steps", "epoch")),
    "per_device_eval_batch_size": count(8),
    "optim": text("adamw_torch_fused"),
    "max_grad_norm": real(1.0),
}

COMPLETION = "Prompt tokens, where the data has columns prompt and completion, leave"
SPLIT = "Tokens beyond max_length begin a piece of their own: an example may count in several places."
CUT = {
    "none": "Tokens beyond max_length leave numerator and count: the end of a long example is not learned.",
    "bfd": "Tokens beyond max_length leave numerator and count: the end of a long example is not learned.",
    "bfd_split": SPLIT,
    "bfd-requeue": SPLIT,
    "wrapped": "Rows are cut at max_length wherever that falls: pieces of an example stand in several rows, see the "
    "examples before them, and an example's first token is learned from the one before it.",
}
FLAT = "Rows laid end to end change no weight: each example's first token is no target either way."
DFT = (
    "Each token's loss is multiplied by its own probability, detached, and stays in the count as a whole: tokens that "
    "the model finds unlikely count little, and the step shrinks with them."
)
SMOOTHED = "The smoothing term has the same count, and a mean over the vocabulary."
NOTICES = [
    "num_items_in_batch needs a model whose forward takes loss arguments. Without it, and in transformers before 4.46, "
    f"each micro-batch has its own mean: {SUPERVISED['micro_token_mean'].formula}. "
    f"{SUPERVISED['micro_token_mean'].says}"
]


def explain(place: str, table: Mapping[str, Any]) -> Explanation:
    """The denominators of an SFTConfig; `place` names the file in errors. Raises RecipeError as `keys.read` does."""
    found = read(place, table, KEYS)
    v = found.values
    numbers = {"GA": v["gradient_accumulation_steps"], "W": v["world_size"]}
    average = GLOBAL if v["average_tokens_across_devices"] else PER_RANK
    if v["packing"]:
        average = replace(average, says=SUPERVISED["packed_token_mean"].says)
    rows, absent = [average.of("loss", v["loss_type"], numbers, *_words(v))], {}
    if v["router_aux_loss_coef"]:
        rows.append(AUXILIARY.of("aux", "micro-batch mean", numbers))
    else:
        absent["aux"] = "router_aux_loss_coef is 0 or absent; a mixture of experts then brings its own"
    optimizer = cancelled(v["optim"], v["max_grad_norm"])
    return Explanation(
        "TRL 1.16, SFTConfig", rows, absent, optimizer, NOTICES, found.record(), found.ignored, _averages(v)
    )


def _words(v: Mapping[str, Any]) -> list[str]:
    """Which tokens leave the numerator, and what that does to the count; what packing does to it."""
    flat = v["padding_free"] or v["packing"]
    completion = {True: "Prompt tokens leave", False: "No prompt is masked; none leaves", None: COMPLETION}
    return [
        f"{completion[v['completion_only_loss']]} numerator and count.",
        *paired(
            (
                (v["assistant_only_loss"], "Tokens outside the assistant's turns leave numerator and count."),
                (v["max_length"] is not None, CUT[v["packing_strategy"] if v["packing"] else "none"]),
                (flat and not (v["packing"] and v["packing_strategy"] == "wrapped"), FLAT),
                (v["loss_type"] == "dft", DFT),
                (v["label_smoothing_factor"] > 0 and v["loss_type"] != "dft", SMOOTHED),
            )
        ),
    ]


def _averages(v: Mapping[str, Any]) -> list[Measure]:
    if v["eval_strategy"] == "no":
        return []
    counted = {} if v["max_length"] is None else {"tokens beyond max_length": "left_out"}
    return [measure("eval_loss", "batch_token", counted)]
