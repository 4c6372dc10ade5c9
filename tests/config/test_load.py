"""From TOML files and overrides to a recipe: what is merged, where each value came from, what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipe import RECIPE

from cupola.core.config import ExactReward, SamplingSection, SftRecipe, dump, load, load_recipe
from cupola.core.config.presets import PRESETS
from cupola.core.records import RecipeError, Sampling


def refused(paths: list[Path], *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(paths, overrides)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_value_tells_where_it_came_from(recipe: Path) -> None:
    loaded, origin = load_recipe([recipe], ["sampling.group_size=4", "reward.0.extract=#(.*)"])

    assert loaded.run.steps == 7
    assert loaded.sampling.group_size == 4
    assert loaded.reward[0] == ExactReward(name="right", extract="#(.*)")
    assert origin["run.steps"] == "my.toml:2"
    assert origin["data.options.levels"] == "my.toml:6"
    assert origin["data.options.wrong_digit"] == "my.toml:6"
    assert origin["reward.0.name"] == "my.toml:9"
    assert origin["reward.1.weight"] == "my.toml:16"
    assert origin["reward.0.weight"] == "default"
    assert origin["sampling.group_size"] == "command line"
    assert origin["reward.0.extract"] == "command line"
    assert origin["objective.surrogate.high"] == "my.toml:22"
    assert origin["objective.denominator"] == "preset dr_grpo"
    assert origin["objective.count_dead"] == "default"
    assert origin["optim.betas"] == "default"


def test_preset_gives_values_and_yields_to_the_recipe(recipe: Path) -> None:
    loaded, _ = load_recipe([recipe])
    assert (loaded.objective.scale, loaded.objective.denominator, loaded.objective.beta) == ("none", "constant", 0.0)
    assert loaded.objective.surrogate.model_dump() == {"kind": "clipped", "low": 0.2, "high": 0.28}

    other, origin = load_recipe([recipe], ["objective.preset=grpo", "objective.beta=0"])
    assert (other.objective.scale, other.objective.denominator) == ("group_std", "sequence_mean")
    assert (other.objective.beta, origin["objective.beta"]) == (0.0, "command line")
    assert (other.objective.kl_estimator, origin["objective.kl_estimator"]) == ("k3", "preset grpo")


def test_later_files_win_key_by_key_but_replace_lists_whole(recipe: Path) -> None:
    over = Path("over.toml")
    over.write_text('[run]\nseed = 3\n[[reward]]\nname = "other"\nkind = "numeric"\n', encoding="utf-8")

    loaded, origin = load_recipe([recipe, over])

    assert (loaded.run.steps, loaded.run.seed) == (7, 3)
    assert [part.name for part in loaded.reward] == ["other"]
    assert origin["run.steps"] == "my.toml:2"
    assert origin["run.seed"] == "over.toml:2"
    assert origin["reward.0.name"] == "over.toml:4"
    assert origin["reward.0.tolerance"] == "default"
    assert "reward.1.name" not in origin


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("run.name=a-b", "a-b"),
        ('run.name="quoted"', "quoted"),
        ("run.seed=3", 3),
        ("data.chat=true", True),
        ("optim.learning_rate=1e-3", 0.001),
        ("optim.learning_rate=1", 1.0),
        ("sampling.stop=['\\n', 'x']", ["\\n", "x"]),
        ("model.source=org/name", "org/name"),
    ],
)
def test_overrides_are_toml_values_or_plain_text(recipe: Path, override: str, value: object) -> None:
    loaded, origin = load_recipe([recipe], [override])
    key = override.partition("=")[0]
    section, name = key.split(".")
    assert getattr(getattr(loaded, section), name) == value
    assert origin[key] == "command line"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("sampling.grupsize=3", "command line: sampling.grupsize: unknown key; did you mean group_size?"),
        ("samplin.group_size=3", "command line: samplin: unknown key; did you mean sampling?"),
        ("group_size=3", "command line: group_size: unknown key; did you mean sampling.group_size?"),
        ("run.group_size=3", "command line: run.group_size: unknown key; did you mean sampling.group_size?"),
        ("reward.1.patern=x", "command line: reward.1.patern: unknown key; did you mean pattern?"),
        (
            "reward.0.tolerance=1",
            "command line: reward.0.tolerance: unknown key of kind 'exact'; it belongs to kind 'numeric'",
        ),
        (
            "reward.1.extract=x",
            "command line: reward.1.extract: unknown key of kind 'pattern'; it belongs to kind "
            "'exact' and 'numeric' and 'function'",
        ),
        ("reward.0.seed=1", "command line: reward.0.seed: unknown key; did you mean run.seed?"),
        (
            "reward.0.qqq=1",
            "command line: reward.0.qqq: unknown key; there are name, kind, weight, role, extract, ignore_case",
        ),
        ("run.ignore_case=true", "command line: run.ignore_case: unknown key; did you mean reward.ignore_case?"),
        (
            "reward.0.kind=exactly",
            "command line: reward.0.kind: should be one of 'exact', 'numeric', 'pattern', 'function', 'overlong', "
            "got 'exactly'",
        ),
        (
            "reward.0.role=form",
            "command line: reward.0.role: input should be 'correctness', 'format' or 'other', got 'form'",
        ),
        ("objective.why.policies=x", "command line: objective.why.policies: unknown key; did you mean policy?"),
        ("diagnosis.qqq=3", "command line: diagnosis.qqq: unknown key; there are on_warning, exact_share_every"),
        ("run.steps=many", "command line: run.steps: input should be a valid integer, got 'many'"),
        ("run.steps=0", "command line: run.steps: input should be greater than or equal to 1, got 0"),
        ("run.name=../x", "command line: run.name: string should match pattern '^\\w[\\w .-]*$', got '../x'"),
        ("optim.learning_rate='1'", "command line: optim.learning_rate: input should be a valid number, got '1'"),
        ("optim.learning_rate=inf", "command line: optim.learning_rate: input should be a finite number, got inf"),
        ("optim.betas=[0.9, 1]", "command line: optim.betas.1: input should be less than 1, got 1"),
        ("reward.0.weight=true", "command line: reward.0.weight: input should be a valid number, got True"),
        ("data.options=3", "command line: data.options: is a table of keys, got 3"),
        ("reward=[3]", "command line: reward.0: is a table of keys, got 3"),
        ("model=3", "command line: model: is a table of keys, got 3"),
        ("model.dtype=fp8", "command line: model.dtype: input should be 'float32', 'bfloat16' or 'float64', got 'fp8'"),
        (
            "objective.preset=gpro",
            "command line: objective.preset: unknown preset 'gpro'; there are " + ", ".join(sorted(PRESETS)),
        ),
        ("reward.2.weight=1", "reward.2.weight: 2 is none of the 2 entries, which count from 0"),
        ("reward.right.weight=1", "reward.right.weight: right is none of the 2 entries, which count from 0"),
        ("run.steps.more=1", "run.steps.more: steps is a value, not a table"),
        ("=1", "'=1': an override is written key.subkey=value"),
        ("sampling.stop=['x', '']", "command line: sampling.stop.1: string should have at least 1 character, got ''"),
        ("model.source=", "command line: model.source: string should have at least 1 character, got ''"),
        ("data.task=", "command line: data.task: string should have at least 1 character, got ''"),
        ("run.seed=-1", "command line: run.seed: input should be greater than or equal to 0, got -1"),
        (
            f"run.seed={2**63}",
            "command line: run.seed: input should be less than 9223372036854775808, got 9223372036854775808",
        ),
        (
            "sampling.stop_token_ids=[3, -1]",
            "command line: sampling.stop_token_ids.1: input should be greater than or equal to 0, got -1",
        ),
        (
            f"sampling.max_tokens={10**13}",
            "command line: sampling.max_tokens: input should be less than or equal to 1000000000000, "
            "got 10000000000000",
        ),
        ("run.threads=1025", "command line: run.threads: input should be less than or equal to 1024, got 1025"),
        (
            "optim.learning_rate=11",
            "command line: optim.learning_rate: input should be less than or equal to 10, got 11",
        ),
        (
            "objective.surrogate.high=101",
            "command line: objective.surrogate.high: input should be less than or equal to 100, got 101",
        ),
        (
            "reward.0.weight=-1e7",
            "command line: reward.0.weight: input should be greater than or equal to -1000000, got -10000000.0",
        ),
        (
            "sampling.temperature=0.001",
            "command line: sampling.temperature: input should be greater than or equal to 0.01, got 0.001",
        ),
        (
            "evaluation.temperatures=[0.3, 101]",
            "command line: evaluation.temperatures.1: input should be less than or equal to 100, got 101",
        ),
        (
            "evaluation.temperatures=[0.3, 1, 0.3]",
            "command line: evaluation.temperatures: 0.3 stands there twice; give each temperature once",
        ),
        (
            "data.system=be brief",
            "command line: data.system: needs chat messages, but the prompts are plain text; set data.chat = true",
        ),
    ],
)
def test_what_cannot_be_set_is_refused_by_key(recipe: Path, override: str, text: str) -> None:
    assert refused([recipe], override) == text


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("steps = 7", "setps = 7", "my.toml:2: run.setps: unknown key; did you mean steps?"),
        ("steps = 7", 'steps = "7"', "my.toml:2: run.steps: input should be a valid integer, got '7'"),
        ("weight = 0", "wieght = 0", "my.toml:16: reward.1.wieght: unknown key; did you mean weight?"),
        ('name = "form"', "", "my.toml:12: reward.1.name: is missing"),
        ("pattern = 'a+'", "", "my.toml:12: reward.1.pattern: is missing"),
        ("weight = 0", "ignore_case = true", "my.toml:16: reward.1.ignore_case: unknown key of kind 'pattern'; it"),
        ("pattern = 'a+'", "patern = 'a+'", "my.toml:15: reward.1.patern: unknown key; did you mean pattern?"),
        ('kind = "pattern"', "", "my.toml:12: reward.1.kind: is missing"),
        ("[run]", "[rnu]", "my.toml:1: rnu: unknown key; did you mean run?"),
        ('name = "form"', 'name = "right"', "my.toml:13: reward.1.name: another reward part is called 'right' too"),
        ('task = "arithmetic"', "", "my.toml:4: data: names no prompts; give a `task` or a `file`"),
        ("[data]", "[smapling]", "my.toml:4: smapling: unknown key; did you mean sampling?"),
        ('task = "arithmetic"', "file = 'q.csv'", "my.toml:6: data.options: are settings of a built-in task, but"),
        (
            "high = 0.28",
            "low = 1.5",
            "my.toml:22: objective.surrogate.low: input should be less than or equal to 1",
        ),
    ],
)
def test_a_fault_in_a_file_is_named_by_line(recipe: Path, old: str, new: str, text: str) -> None:
    assert RECIPE.count(old) == 1
    recipe.write_text(RECIPE.replace(old, new), encoding="utf-8")
    assert refused([recipe]).startswith(text)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["sampling.group_size=1"],
            "sampling.group_size: 1 makes groups that cannot be compared, so it goes with base",
        ),
        (
            ["sampling.group_size=1", "objective.baseline=batch_mean"],
            "sampling.group_size: 1 makes groups that cannot be compared, so it goes with baseline 'critic' or 'none' "
            "and scale 'none' alone; use at least 2",
        ),
        (
            ["sampling.group_size=1", "objective.baseline=none", "sampling.max_batches=2"],
            "sampling.max_batches: above 1 draws until enough groups differ within, which a group of 1 never does",
        ),
        (
            ["sampling.group_size=1", "objective.baseline=none", "objective.transform=best_only"],
            "sampling.group_size: 1 leaves transform 'best_only' no second answer; use at least 2",
        ),
        (
            ["objective.transform=pass_at_k", "objective.pass_k=9"],
            "objective.pass_k: is more than sampling.group_size = 8",
        ),
        (
            ["objective.masks.kl_cov={}"],
            "objective.masks.kl_cov: charges for leaving the policy that a batch began with, which its only optimiser "
            "step has not left; take more optim.minibatches or optim.epochs",
        ),
        (
            ["sampling.top_p=0.9"],
            "sampling.top_p: cuts the distribution that is sampled but not the one that is trained",
        ),
        (
            ["sampling.top_k=50"],
            "sampling.top_k: cuts the distribution that is sampled but not the one that is trained",
        ),
        (["data.file=q.jsonl"], "data.file: stands beside `task`; give one of the two"),
        (
            ["objective.surrogate.low=1.01"],
            "objective.surrogate.low: input should be less than or equal to 1, got 1.01",
        ),
        (["optim.minibatches=257"], "optim.minibatches: cuts a batch of 256 rollouts into more pieces than it has"),
    ],
)
def test_contradictions_are_refused(recipe: Path, overrides: list[str], text: str) -> None:
    assert refused([recipe], *overrides).startswith(f"command line: {text}")


def test_group_size_one_is_allowed_without_a_group_baseline(recipe: Path) -> None:
    loaded, _ = load_recipe([recipe], ["sampling.group_size=1", "objective.baseline=none"])
    assert loaded.sampling.group_size == 1


def test_faults_of_the_file_itself(recipe: Path) -> None:
    assert refused([Path("none.toml")]) == "none.toml: no such recipe"
    recipe.write_text("[run]\nsteps = = 7\n", encoding="utf-8")
    assert refused([recipe]) == "my.toml: not TOML: Invalid value (at line 2, column 9)"
    recipe.write_bytes(b"[run]\nname = '\xff'\n")
    assert refused([recipe]).startswith("my.toml: cannot be read: ")
    recipe.write_text("", encoding="utf-8")
    assert refused([recipe]) == "my.toml: data: is missing"


def test_a_system_message_is_refused_only_where_no_chat_can_be(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("options = ", "#"), encoding="utf-8")
    for source in ("data.file=q.jsonl", "data.file=q.parquet"):
        text = recipe.read_text(encoding="utf-8").replace('task = "arithmetic"', "")
        Path("file.toml").write_text(text, encoding="utf-8")
        loaded, _ = load_recipe([Path("file.toml")], [source, "data.system=be brief"])
        assert loaded.data.system == "be brief"
    assert refused([Path("file.toml")], "data.file=q.CSV", "data.system=be brief").startswith(
        "command line: data.system: needs chat messages"
    )
    assert load_recipe([recipe], ["data.chat=true", "data.system=be brief"])[0].data.system == "be brief"


def test_a_byte_order_mark_is_no_fault(recipe: Path) -> None:
    recipe.write_text(RECIPE, encoding="utf-8-sig")
    loaded, _ = load_recipe([recipe])
    assert loaded.run.steps == 7


def test_dump_is_a_recipe_of_the_same_values(recipe: Path) -> None:
    loaded, _ = load_recipe([recipe], ["objective.why.policy=it is 'so'", "sampling.stop=['\"', '\\n']"])
    written = Path("resolved.toml")
    written.write_text(dump(loaded), encoding="utf-8")

    again, origin = load_recipe([written])

    assert again == loaded
    assert origin["objective.denominator"].startswith("resolved.toml:")
    assert dump(again) == dump(loaded)


def test_sampling_settings_are_the_records() -> None:
    section = SamplingSection(max_tokens=9, temperature=0.7, stop=["\n"], stop_token_ids=[3, 4])
    assert section.settings() == Sampling(9, 0.7, ("\n",), (3, 4))
    assert section.settings(temperature=0) == Sampling(9, 0, ("\n",), (3, 4))


SUPERVISED = 'output = "m"\n[data]\nfile = "examples.jsonl"\n'


def test_supervised_recipe_has_its_own_keys(recipe: Path) -> None:
    recipe.write_text(SUPERVISED, encoding="utf-8")
    loaded, origin = load([recipe], ["training.steps=5"], SftRecipe)
    assert (loaded.output, loaded.training.steps) == ("m", 5)
    assert origin["output"] == "my.toml:1"
    recipe.write_text('[data]\ntask = "arithmetic"\n', encoding="utf-8")
    with pytest.raises(RecipeError, match=r"my\.toml: output: is missing"):
        load([recipe], [], SftRecipe)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("run.steps=5", "run.steps: unknown key; did you mean training.steps?"),
        ("run.name=x", "run.name: unknown key; did you mean optim.name?"),
        ("run.folder=x", "run.folder: unknown key; there are seed, threads"),
        ("optim.minibatches=2", "optim.minibatches: unknown key; there are name, learning_rate"),
        ("optim.epochs=2", "optim.epochs: unknown key; there are name, learning_rate"),
        (
            "data.validation_share=0.5",
            "data.validation_share: unknown key; there are task, options, file",
        ),
        ("data.answer_required=false", "data.answer_required: unknown key; there are task"),
        ("model={source = 'a', heads = 2}", "model.heads: describes a new model, but `source` names one that exists"),
    ],
)
def test_supervised_recipe_refuses_what_it_would_not_read(recipe: Path, override: str, text: str) -> None:
    recipe.write_text(SUPERVISED, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load([recipe], [override], SftRecipe)
    assert str(caught.value).startswith(f"command line: {text}")
