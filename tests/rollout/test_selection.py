"""Prompt selection: the estimates by hand, draws without repetition, an exact resumption, and the aim itself."""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.core.config import Recipe, SamplingSection, validate
from cupola.core.records import Completion, Group, Prompt, RecipeError, Rollout, Verdict
from cupola.train.rollout import Aimed, SolveRates, Uniform, credit, open_selector
from cupola.train.tasks import FileSource, PromptSource, Questions, open_source

EMPTY = np.zeros(1, dtype=np.float32)
ANSWER = Completion("", np.zeros(1, dtype=np.int64), EMPTY, EMPTY, "stop", 0)
PROMPTS = tuple(Prompt(f"q{n}") for n in range(40))


def source(size: int) -> FileSource:
    return FileSource(Questions(PROMPTS[:size], (), 0, ()), seed=0)


def aimed(size: int, seed: int = 0, **selection: Any) -> Aimed:
    table = {"kind": "aimed", **selection}
    sampling = validate({"prompts_per_step": 1, "selection": table}, SamplingSection)
    return Aimed(source(size), PROMPTS[:size], sampling, seed, "right")


def judged(score: float | None, correct: bool | None) -> Rollout:
    status = "skipped" if score is None else "ok" if correct else "wrong"
    return Rollout(ANSWER, {"right": Verdict(score, status)}, score, correct)


def group(prompt: Prompt, solved: int, failed: int) -> Group:
    return Group("g", prompt, (judged(1.0, True),) * solved + (judged(0.0, False),) * failed)


def texts(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize(
    ("score", "correct", "value"),
    [
        (1.0, True, 1.0),
        (0.8, True, 1.0),  # right at 0.8: right is right
        (0.25, False, 0.25),
        (0.0, False, 0.0),
        (-1.0, False, 0.0),
        (3.0, False, 0.0),  # on a scale of its own, so it is no share of a solution
        (None, None, None),
    ],
)
def test_credit_of_an_answer(score: float | None, correct: bool | None, value: float | None) -> None:
    assert credit(judged(score, correct), "right") == value


def test_the_estimate_by_hand() -> None:
    rates = SolveRates(decay=0.5)
    assert rates.of("a") is None
    rates.add("a", [1.0, 0.25, 0.0])
    assert rates.of("a") == pytest.approx(1.25 / 3)
    rates.add("a", [1.0, 1.0])  # S = 0.625 + 2, N = 1.5 + 2
    assert rates.of("a") == pytest.approx(0.75)
    rates.add("a", [])
    assert rates.of("a") == pytest.approx(0.75)
    assert rates.of("b") is None


def test_without_memory_the_estimate_is_the_latest_group() -> None:
    rates = SolveRates(decay=0.0)
    rates.add("a", [1.0, 1.0])
    rates.add("a", [1.0, 0.0, 0.0, 0.0])
    assert rates.of("a") == 0.25


def test_what_nobody_judged_counts_nothing() -> None:
    selector = aimed(2)
    selector.observe([Group("g", PROMPTS[0], (judged(1.0, True), judged(0.0, False), judged(None, None)))])
    selector.observe([Group("g", PROMPTS[1], (judged(None, None),) * 2)])
    assert selector.state() == {PROMPTS[0].id: [1.0, 2.0]}


@pytest.mark.parametrize(
    ("rate", "share"),
    [((1, 3), 1 / (1 + np.exp(-1))), ((4, 0), 1 / (1 + np.exp(-2))), ((2, 2), 0.5), (None, 0.5)],
)
def test_the_weight_falls_by_e_per_width(rate: tuple[int, int] | None, share: float) -> None:
    """On target against a quarter off, a half off, on target, and not met: 2000 draws of one, four standard errors."""
    selector = aimed(2, explore=0.0)
    selector.observe([group(PROMPTS[0], 2, 2), *([group(PROMPTS[1], *rate)] if rate else [])])
    known = selector.state()
    drawn = Counter[str]()
    for index in range(2000):
        selector.restore(known)
        drawn.update(texts(selector.draw(index, 1)))
    assert drawn["q0"] / 2000 == pytest.approx(share, abs=4 * (0.25 / 2000) ** 0.5)


def test_the_metrics_are_of_how_the_step_was_drawn() -> None:
    selector = aimed(4, explore=0.25)
    selector.draw(0, 4)
    first = selector.observe([group(PROMPTS[0], 1, 3), group(PROMPTS[1], 4, 0)])
    assert first == {
        "groups/selection_known": 0.0,
        "groups/selection_rate": None,
        "groups/selection_drawn_rate": None,
        "groups/selection_explored": 0.25,
    }
    selector.draw(1, 4)
    assert selector.observe([]) == {
        "groups/selection_known": 0.5,
        "groups/selection_rate": 0.625,
        "groups/selection_drawn_rate": 0.625,
        "groups/selection_explored": 0.25,
    }
    assert selector.observe([])["groups/selection_explored"] is None


def test_a_steps_later_batches_ask_other_prompts_until_none_is_left() -> None:
    selector = aimed(6)
    first, second = selector.draw(0, 3), selector.draw(1, 3)
    assert sorted(texts(first + second)) == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert len(set(texts(selector.draw(2, 3)))) == 3


def test_with_exploration_each_prompt_is_met_once_an_epoch_however_far_off() -> None:
    selector = aimed(40, width=1e-9, explore=0.25)
    selector.observe([group(PROMPTS[0], 1, 1), *(group(prompt, 0, 2) for prompt in PROMPTS[1:])])
    met = set()
    for index in range(20):  # 8 a batch, so 2 explored: 20 batches are one pass over 40
        met.update(texts(selector.draw(index, 8)))
        selector.observe([])
    assert met == set(texts(PROMPTS))


def test_the_file_order_plays_no_part() -> None:
    one = aimed(20)
    other = Aimed(one.source, PROMPTS[19::-1], one.sampling, one.seed, one.part)
    assert texts(one.draw(5, 7)) == texts(other.draw(5, 7))


OBSERVED = st.lists(st.tuples(st.integers(0, 39), st.integers(0, 4), st.integers(0, 4)), max_size=60)
SELECTION = st.fixed_dictionaries(
    {
        "target": st.floats(0.01, 0.99),
        "width": st.floats(1e-12, 1e6),
        "decay": st.floats(0, 0.99),
        "explore": st.floats(0, 1),
    }
)


@given(
    size=st.integers(1, 40),
    observed=OBSERVED,
    selection=SELECTION,
    index=st.integers(0, 10**6),
    data=st.data(),
)
def test_no_batch_repeats_a_prompt_and_a_resumed_run_draws_the_same(
    size: int, observed: list[tuple[int, int, int]], selection: dict[str, float], index: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, size))
    selector, resumed = aimed(size, seed=7, **selection), aimed(size, seed=7, **selection)
    for row, solved, failed in observed:
        selector.observe([group(PROMPTS[row % size], solved, failed)])
    resumed.restore(json.loads(json.dumps(selector.state())))
    assert resumed.state() == selector.state()
    for batch in range(3):
        drawn = texts(selector.draw(index + batch, count))
        assert len(set(drawn)) == len(drawn) == count
        assert texts(resumed.draw(index + batch, count)) == drawn
        if batch:
            groups = [group(PROMPTS[0], 1, 2)]
            assert resumed.observe(groups) == selector.observe(groups)
    assert resumed.state() == selector.state()


@given(index=st.integers(0, 1000), count=st.integers(1, 60))
def test_uniform_is_the_source_itself(index: int, count: int) -> None:
    selector = Uniform(source(20))
    assert selector.observe([group(PROMPTS[0], 1, 1)]) == {}
    assert selector.state() == {}
    selector.restore({})
    assert texts(selector.draw(index, count)) == texts(source(20).draw(index, count))


def test_aimed_meets_middling_prompts_most_and_none_never() -> None:
    """60 prompts each of solve rate 0.02, 0.5 and 0.98, known from groups of 8; the first pass is not counted.

    A third of the uniform draws is middling; of the aimed ones more than half must be. The explored share, 2 of 16,
    makes a whole epoch of the 180 in batches 90 to 179, so that each comes again.
    """
    prompts = tuple(Prompt(f"p{n}") for n in range(180))
    rate = {prompt.id: (0.02, 0.5, 0.98)[n % 3] for n, prompt in enumerate(prompts)}
    whole = FileSource(Questions(prompts, (), 0, ()), seed=0)
    sampling = SamplingSection.model_validate({"prompts_per_step": 16, "selection": {"kind": "aimed"}})
    shares = []
    for selector in (Uniform(whole), Aimed(whole, prompts, sampling, 0, "right")):
        rng, drawn = random.Random(0), Counter[str]()
        for index in range(180):
            batch = selector.draw(index, 16)
            solved = [sum(rng.random() < rate[prompt.id] for _ in range(8)) for prompt in batch]
            selector.observe([group(prompt, n, 8 - n) for prompt, n in zip(batch, solved, strict=True)])
            drawn.update(prompt.id for prompt in batch if index >= 15)
        shares.append(sum(n for prompt_id, n in drawn.items() if rate[prompt_id] == 0.5) / drawn.total())
        assert len(drawn) == 180
    assert shares[0] == pytest.approx(1 / 3, abs=0.02)
    assert shares[1] > 0.5


def recipe(**sampling: Any) -> Recipe:
    table = {"data": {"file": "q.jsonl"}, "reward": [{"name": "right", "kind": "exact"}], "sampling": sampling}
    return validate(table, Recipe)


def test_the_recipe_decides_the_selector() -> None:
    questions = source(3)
    assert open_selector(recipe(), questions) == Uniform(questions)
    selector = open_selector(recipe(prompts_per_step=3, selection={"kind": "aimed"}), questions)
    assert isinstance(selector, Aimed)
    assert sorted(texts(selector.draw(0, 3))) == ["q0", "q1", "q2"]


def endless() -> PromptSource:
    made = validate({"data": {"task": "arithmetic"}, "reward": [{"name": "right", "kind": "exact"}]}, Recipe)
    return open_source(made.data, made.reward, 0)


@pytest.mark.parametrize(
    ("prompts", "text"),
    [
        (endless(), "sampling.selection.kind: 'aimed' chooses among prompts it has met, but the task makes new ones"),
        (
            source(3),
            "sampling.selection.kind: 'aimed' has nothing to choose, for sampling.prompts_per_step = 4 is more",
        ),
    ],
)
def test_aimed_needs_a_set_to_choose_from(prompts: PromptSource, text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        open_selector(recipe(prompts_per_step=4, selection={"kind": "aimed"}), prompts)
    assert str(refused.value).startswith(text)
    assert "\n" not in str(refused.value)


def test_the_page_shows_the_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
    (block,) = (each for each in page.split("```toml\n")[1:] if each.startswith("[sampling.selection]"))
    shown = tomllib.loads(block.split("```")[0])["sampling"]["selection"]
    assert shown == SamplingSection.model_validate({"selection": {"kind": "aimed"}}).selection.model_dump()
