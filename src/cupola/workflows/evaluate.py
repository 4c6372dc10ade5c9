"""Evaluate checkpoints: base against trained on questions that training never saw, or one model alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cupola.core.config import Evaluation, Recipe
from cupola.core.records import EvalSample, Prompt, RunFolderError, Split
from cupola.core.runlog import Layout, RunReader, write_evaluation
from cupola.prove.evaluation import choose_temperature, mode_of, summarise, temperature_of
from cupola.train.models import load_policy
from cupola.workflows.assemble import Assembly, assemble, recipe_of, refuse_another_model

Say = Callable[[str], None]


def evaluate_run(
    root: Path, say: Say, step: int | None = None, changed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compare a run's checkpoint (the newest, or of `step`) with the policy it started from.

    The base's best temperature is chosen on dev questions; every test question gets a greedy answer and
    `evaluation.samples` sampled ones at the training temperature from both arms. `changed` are settings in place of the
    recipe's. Writes evals/<id>/ and returns the summary. Raises RunFolderError where there is no such
    checkpoint, or where the starting model has changed since.
    """
    reader = RunReader(root)
    layout, recipe = reader.layout, recipe_of(reader)
    settings = recipe.evaluation.model_copy(update=dict(changed or {}))
    steps = layout.checkpoint_steps()
    step = steps[-1] if step is None and steps else step
    if step is None or step not in steps:
        raise RunFolderError(f"{root}: no checkpoint of step {step}; there are {steps}")
    say("loading base and trained policy")
    base = assemble(recipe)
    refuse_another_model(root, base, reader.manifest())
    trained = replace(base, policy=load_policy(str(layout.checkpoint(step)), recipe.model.dtype, recipe.model.device))
    split, dev, test = base.questions(settings)
    say(f"choosing the base's best temperature on {len(dev)} other questions")
    modes = [mode_of(t) for t in [0.0, *settings.temperatures]]
    best, table = choose_temperature([s for mode in modes for s in ask("base", base, dev, mode, "dev", settings)])
    training = mode_of(recipe.sampling.temperature)
    samples: list[EvalSample] = []
    for arm, parts, further in (("base", base, [best]), ("trained", trained, [])):
        say(f"{arm}: {len(test)} {split} questions, greedy and {settings.samples} sampled answers each")
        for mode in dict.fromkeys([mode_of(0.0), training, *further]):
            samples += ask(arm, parts, test, mode, "test", settings)
    summary = summarise(
        samples,
        split=split,
        temperature=recipe.sampling.temperature,
        base_best=(best, temperature_of(best)),
        ks=[settings.samples],
    )
    summary |= {"dev": {"questions": len(dev), "accuracy": table}, "step": step}
    return write_evaluation(layout, f"step-{step:06d}", samples, summary)


def evaluate_model(recipe: Recipe, model: str, out: Path, say: Say, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy accuracy, pass@1 and pass@k of one model on the recipe's held-out questions; writes `out`/evals/model/."""
    parts = assemble(recipe, model)
    settings = recipe.evaluation.model_copy(update=dict(changed))
    split, _, test = parts.questions(settings)
    say(f"{model}: {len(test)} {split} questions")
    modes = (mode_of(0.0), mode_of(recipe.sampling.temperature))
    samples = [sample for mode in modes for sample in ask("model", parts, test, mode, "test", settings)]
    summary = summarise(samples, split=split, temperature=recipe.sampling.temperature, ks=[settings.samples])
    return write_evaluation(Layout(out), "model", samples, summary)


def ask(
    arm: str, parts: Assembly, prompts: Sequence[Prompt], mode: str, split: Split, settings: Evaluation
) -> list[EvalSample]:
    """One greedy answer, or the settings' number of sampled ones, per question, judged by the recipe's own reward."""
    temperature = temperature_of(mode)
    n = 1 if temperature == 0 else settings.dev_samples if split == "dev" else settings.samples
    sampling = parts.recipe.sampling.settings(temperature)
    groups = parts.collector().collect(0, prompts, n, sampling, split, f"{arm} {mode}")
    part = parts.recipe.correctness_part()
    return [
        EvalSample(
            arm=arm,
            prompt_id=group.prompt.id,
            mode=mode,
            index=index,
            text=rollout.completion.text,
            answer=rollout.verdicts[part].extracted,
            correct=rollout.correct,
            n_tokens=rollout.completion.n_tokens,
            finish_reason=rollout.completion.finish_reason,
        )
        for group in groups
        for index, rollout in enumerate(group.rollouts)
    ]
