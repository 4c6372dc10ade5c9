"""Evaluate checkpoints: base against trained on questions that training never saw, or one model alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cupola.core.config import Evaluation, Recipe, load_recipe
from cupola.core.records import EvalSample, Prompt, RunFolderError, Split
from cupola.core.runlog import Layout, RunReader
from cupola.prove.evaluation import choose_temperature, mode_of, summarise, temperature_of, write
from cupola.train.loop import sampling_of
from cupola.train.tasks import FileSource, PromptSource
from cupola.workflows.assemble import Parts, assemble

Say = Callable[[str], None]
Arm = tuple[str, Parts]


def evaluate_run(
    root: Path, say: Say, step: int | None = None, changed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compare a run's checkpoint (the newest, or of `step`) with the policy it started from.

    The base's best temperature is chosen on dev questions; every test question gets a greedy answer and
    `evaluation.samples` sampled ones at the training temperature from both arms. `changed` are settings in place of the
    recipe's. Writes evals/<id>/ and returns the summary. Raises RunFolderError where there is no such checkpoint.
    """
    layout = RunReader(root).layout
    recipe, _ = load_recipe([layout.recipe])
    settings = recipe.evaluation.model_copy(update=dict(changed or {}))
    steps = layout.checkpoint_steps()
    step = steps[-1] if step is None and steps else step
    if step is None or step not in steps:
        raise RunFolderError(f"{root}: no checkpoint of step {step}; there are {steps}")
    say("loading base and trained policy")
    base, trained = assemble(recipe), assemble(recipe, str(layout.checkpoint(step)))
    split, dev, test = questions(base.source, settings)
    modes = [mode_of(t) for t in [0.0, *settings.temperatures]]
    say(f"choosing the base's best temperature on {len(dev)} other questions")
    tried = [s for mode in modes for s in ask(("base", base), dev, mode, settings.dev_samples)]
    best, table = choose_temperature(tried)
    training = mode_of(recipe.sampling.temperature)
    samples: list[EvalSample] = []
    for arm in (("base", base), ("trained", trained)):
        say(f"{arm[0]}: {len(test)} {split} questions, greedy and {settings.samples} sampled answers each")
        for mode in dict.fromkeys([mode_of(0.0), training, *([best] if arm[0] == "base" else [])]):
            samples += ask(arm, test, mode, settings.samples)
    summary = summarise(
        samples,
        split=split,
        temperature=recipe.sampling.temperature,
        base_best=(best, temperature_of(best)),
        ks=[settings.samples],
    )
    summary["dev"] = {"questions": len(dev), "accuracy": table}
    summary["step"] = step
    return write(layout, f"step-{step:06d}", samples, summary)


def evaluate_model(recipe: Recipe, model: str, out: Path, say: Say, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy accuracy, pass@1 and pass@k of one model on the recipe's held-out questions; writes `out`/evals/model/."""
    parts = assemble(recipe, model)
    settings = recipe.evaluation.model_copy(update=dict(changed))
    split, _, test = questions(parts.source, settings)
    say(f"{model}: {len(test)} {split} questions")
    samples = [
        sample
        for mode in (mode_of(0.0), mode_of(recipe.sampling.temperature))
        for sample in ask(("model", parts), test, mode, settings.samples)
    ]
    summary = summarise(samples, split=split, temperature=recipe.sampling.temperature, ks=[settings.samples])
    return write(Layout(out), "model", samples, summary)


def questions(source: PromptSource, settings: Evaluation) -> tuple[Split, list[Prompt], list[Prompt]]:
    """(split, dev questions, test questions). A data file has no test split: its validation questions are used.

    The dev questions serve the base alone, which was trained on none of them, so a file's training questions do.
    """
    if isinstance(source, FileSource):
        dev = list(source.questions.train[: settings.dev_questions])
        return "validation", dev, source.held_out("validation", settings.questions)
    return "test", source.held_out("dev", settings.dev_questions), source.held_out("test", settings.questions)


def ask(arm: Arm, prompts: Sequence[Prompt], mode: str, samples: int) -> list[EvalSample]:
    """One greedy or `samples` sampled answers per question, judged by the recipe's own reward."""
    name, parts = arm
    temperature = temperature_of(mode)
    sampling = replace(sampling_of(parts.recipe), temperature=temperature)
    n = 1 if temperature == 0 else samples
    groups = parts.collector().collect(0, prompts, n, sampling, "test", f"{name}-{mode}")
    part = parts.recipe.correctness_part()
    return [
        EvalSample(
            arm=name,
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
