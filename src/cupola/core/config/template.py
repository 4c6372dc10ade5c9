"""A commented recipe to own: every key with its meaning and its choices, defaults commented out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cupola.core.config.presets import PRESETS
from cupola.core.config.recipe import Recipe
from cupola.core.config.reward import REWARDS

HEAD = """\
# A cupola recipe. Lines that start with `# key =` show a default; take the mark off to change it.
# Paths (data.file, a model folder, a reward's file.py) are looked up from the folder in which cupola is run."""

#: Choices that no type shows, because a model of its own stands behind each.
NAMED: Mapping[str, Iterable[str]] = {"kind": REWARDS, "preset": PRESETS}


def commented(values: Mapping[str, Mapping[str, Any]], rewards: Sequence[Mapping[str, Any]]) -> str:
    """A TOML recipe with `values` set (section -> key -> value) and all other keys commented at their defaults."""
    blocks = [HEAD]
    for name, field in Recipe.model_fields.items():
        if name == "reward":
            blocks += [_section("[[reward]]", REWARDS[reward["kind"]], reward) for reward in rewards]
        else:
            kind = field.annotation
            assert isinstance(kind, type)
            blocks.append(_section(f"[{name}]", kind, values.get(name, {})))
    return "\n\n".join(blocks) + "\n"


def _section(header: str, kind: type[BaseModel], given: Mapping[str, Any]) -> str:
    lines = [header]
    for key, field in kind.model_fields.items():
        choices = ", ".join(NAMED.get(key) or _choices(field.annotation))
        lines.append(f"# {field.description}{f' One of: {choices}.' if choices else ''}")
        if key in given:
            lines.append(_assignment(key, given[key]))
        else:
            default = PRESETS[given["preset"]].get(key, _default(field)) if "preset" in given else _default(field)
            lines.append(f"# {_assignment(key, default)}".replace("\n", "\n# "))
    return "\n".join(lines)


def _choices(annotation: Any) -> list[str]:
    """The values of the Literal types in an annotation."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


def _assignment(key: str, value: Any) -> str:
    return f"{key} = {'...' if value is None or value is PydanticUndefined else _inline(value)}"


def _inline(value: Any) -> str:
    """A value on one line, as TOML writes it behind the `=`."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_inline(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return tomli_w.dumps({"value": value}).strip().removeprefix("value = ")


def starting_recipe(data: str | None, model: str, reward: str | None) -> str:
    """The recipe `cupola init` writes: the built-in task, or the user's questions, model and reward function."""
    values: dict[str, dict[str, Any]] = {
        "run": {"name": "my-run", "steps": 100},
        "model": {"source": model},
        "data": {"task": "arithmetic"} if data is None else {"file": data, "chat": model != "embedded"},
        "sampling": {"prompts_per_step": 8, "group_size": 8, "max_tokens": 44 if model == "embedded" else 256},
        "objective": {"preset": "dr_grpo"},
        "optim": {"learning_rate": 5e-4 if model == "embedded" else 1e-6, "warmup_steps": 5},
    }
    if reward is not None:
        parts = [{"name": "reward", "kind": "function", "path": reward}]
    elif data is None:
        parts = [{"name": "correct", "kind": "exact", "extract": r"#(\d+)$"}]
    else:
        parts = [{"name": "correct", "kind": "numeric"}]
    return commented(values, parts)
