"""The commented recipe: it parses as written, and every default it shows is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cupola.core.config import FunctionReward, Recipe, commented, load_recipe, starting_recipe
from cupola.core.config.presets import PRESETS
from cupola.core.records import RecipeError

CASES = {
    "task": (None, "embedded", None),
    "file": ("q.jsonl", "./model", None),
    "function": ("q.csv", "org/name", "rewards.py:mine"),
}
COMMENTED_KEY = re.compile(r"# (\w+) = ")


def parse(folder: Path, text: str) -> Recipe:
    path = folder / "made.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe([path])[0]


@pytest.mark.parametrize("case", CASES)
def test_starting_recipe_parses_and_its_comments_are_true(tmp_path: Path, case: str) -> None:
    text = starting_recipe(*CASES[case])
    made = parse(tmp_path, text)
    lines = text.splitlines()
    with_value = [n for n, line in enumerate(lines) if COMMENTED_KEY.match(line) and not line.endswith("= ...")]
    assert len(with_value) > 40
    for number in with_value:
        freed = [*lines[:number], lines[number].removeprefix("# "), *lines[number + 1 :]]
        assert parse(tmp_path, "\n".join(freed)) == made, lines[number]


@pytest.mark.parametrize("case", CASES)
def test_starting_recipe_shows_every_key_under_its_meaning(tmp_path: Path, case: str) -> None:
    text = starting_recipe(*CASES[case])
    made = parse(tmp_path, text)
    for name in Recipe.model_fields:
        body = re.search(rf"^\[+{name}\]+\n(.*?)(?=^\[|\Z)", text, re.S | re.M)
        assert body is not None, name
        value = getattr(made, name)
        fields = type(value[0] if isinstance(value, list) else value).model_fields
        pairs = re.findall(r"^# (.+)\n(?:# )?(\w+) = ", body[1], re.M)
        meanings = [(key, meaning.partition(" One of: ")[0]) for meaning, key in pairs]
        assert meanings == [(key, fields[key].description) for key in fields]


def test_starting_recipe_lists_the_choices_and_where_paths_are_found() -> None:
    text = starting_recipe("q.csv", "org/name", "rewards.py:mine")
    for key, choices in {
        "kind": "exact, numeric, pattern, function, overlong",
        "role": "correctness, format, other",
        "on_error": "stop, unscorable",
        "on_warning": "warn, pause, stop",
        "dtype": "float32, bfloat16, float64",
        "preset": ", ".join(PRESETS),
        "baseline": "group_mean, leave_one_out, batch_mean, critic, none",
        "scale": "group_std, batch_std, group_mean, none",
        "ratio": "token, sequence, sequence_token, sequence_product, none",
        "denominator": "sequence_mean, token_mean, constant, prompt_mean, sequence_sum, token_sum, padded",
        "kl_denominator": "sequence_mean, token_mean, constant, prompt_mean, sequence_sum, token_sum, padded",
    }.items():
        assert re.search(rf"^# .* One of: {choices}\.\n(# )?{key} = ", text, re.M), key
    assert "`arithmetic` or `sums`" in text
    assert "looked up from the folder in which cupola is run" in text.partition("[run]")[0]


def test_starting_recipe_takes_what_the_user_brings(tmp_path: Path) -> None:
    made = parse(tmp_path, starting_recipe("q.csv", "org/name", "rewards.py:mine"))
    assert (made.data.file, made.data.chat, made.model.source) == ("q.csv", True, "org/name")
    assert made.reward == [FunctionReward(name="reward", path="rewards.py:mine")]
    own = parse(tmp_path, starting_recipe(None, "embedded", None))
    assert (own.data.task, own.reward[0].kind) == ("arithmetic", "exact")


def test_comments_follow_the_preset(tmp_path: Path) -> None:
    values = {"data": {"task": "arithmetic"}, "objective": {"preset": "grpo", "beta": 0.0}}
    text = commented(values, [{"name": "a", "kind": "exact"}])
    assert '# denominator = "sequence_mean"\n' in text
    assert "\nbeta = 0.0\n" in text
    assert parse(tmp_path, text).objective.beta == 0.0


def test_text_that_toml_must_quote_survives(tmp_path: Path) -> None:
    hostile = 'a "quoted" \\ back\\slash\nline\t#[x]'
    text = commented(
        {"data": {"task": "arithmetic", "chat": True, "system": hostile}}, [{"name": "a", "kind": "exact"}]
    )
    assert parse(tmp_path, text).data.system == hostile


def test_a_key_without_a_default_cannot_be_freed_by_mistake(tmp_path: Path) -> None:
    text = starting_recipe(None, "embedded", None).replace("# system = ...", "system = ...")
    with pytest.raises(RecipeError, match="not TOML"):
        parse(tmp_path, text)
