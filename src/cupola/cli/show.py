"""Printing: results for people, or as JSON. Text that a policy wrote never reaches the terminal as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from cupola.cli.plain import plain, quoted
from cupola.cli.progress import number
from cupola.core.catalogue import wording
from cupola.core.records import Finding
from cupola.train.ledger import Explanation, Measure, legend
from cupola.watch.diagnosis import Diagnosis

T = TypeVar("T")

console = Console(highlight=False, soft_wrap=True)


def as_json(value: object) -> None:
    """A JSON value in ASCII: control characters, and those that turn the line around, are escaped."""
    finite = json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)  # JSON has no NaN
    print(json.dumps(finite, indent=1))


def lines(*texts: str, style: str | None = None) -> None:
    """Plain lines."""
    for text in texts:
        console.print(text, markup=False, style=style)


def say(quiet: bool) -> Callable[[str], None]:
    """Where a workflow tells what it is doing."""
    return (lambda text: None) if quiet else lines


def diagnosis(found: Diagnosis, json_wanted: bool) -> None:
    """Findings, gravest first: what you see, what it probably means, what to do; then what could not be judged."""
    if json_wanted:
        return as_json(diagnosis_record(found))
    lines(*([] if found.findings else ["no finding"]))
    for finding in found.findings:
        words = wording(finding.name, finding.values, finding.steps)
        first, last = finding.steps
        lines(f"\n{finding.severity}: {words.title} (steps {first} to {last})", style="bold")
        lines(f"  you see   {words.see}", f"  it means  {words.means}", f"  do        {words.do}")
    if found.gaps:
        lines("\ncould not be judged:", style="dim")
    for gap in found.gaps:
        lines(f"  {gap.detector:<28} {gap.found} of {gap.needed} points of {gap.key}", style="dim")


def diagnosis_record(found: Diagnosis) -> dict[str, Any]:
    """Findings in numbers and words, and the detectors that could not judge."""
    return {"findings": [_finding(each) for each in found.findings], "gaps": [vars(gap) for gap in found.gaps]}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**vars(finding), **vars(wording(finding.name, finding.values, finding.steps))}


def evaluation(summary: Mapping[str, Any], json_wanted: bool) -> None:
    """The arms side by side, their differences with intervals, and the verdict on the gain."""
    from cupola.prove.evaluation import points, table

    if json_wanted:
        return as_json(summary)
    shown = Table(title=f"{summary['questions']} {summary['split']} questions", title_justify="left")
    for heading in ["", *summary["arms"]]:
        shown.add_column(heading)
    for row in table(summary):
        shown.add_row(*row)
    console.print(shown)
    lines(*(f"{difference['name']}: {points(difference)} points" for difference in summary["differences"]))
    if verdict := summary["verdict"]:
        lines(f"verdict: {verdict['word'] or 'undecided'}: {verdict['reason']}", style="bold")


def groups(found: Mapping[str, Any], json_wanted: bool) -> None:
    """A step's groups: the prompt once, then its answers: best paid, worst paid, second best; equal ones once."""
    if json_wanted:
        return as_json(found)
    for group in found["groups"]:
        rows = group["rollouts"]
        right = sum(row["correct"] is True for row in rows)
        state = f"{group['state'].replace('_', ' ')}, " if group["state"] else ""
        lines(f"\nstep {found['step']}, {found['split']}: {state}{right} of {len(rows)} right", style="bold")
        lines(f'prompt: "{plain(group["prompt"])}"', f"answer: {plain(group['answer'] or 'none')}")
        heads = [_head(row) for row in rows]
        times = Counter(heads)
        for head in from_both_ends(list(dict.fromkeys(heads))):
            lines(f"  {f'×{times[head]}' if times[head] > 1 else '':<4}{head}")


def _head(row: Mapping[str, Any]) -> str:
    """One answer on one line, with what it was paid."""
    extra = "".join(f", {key.removeprefix('extra.')} {row[key]}" for key in row if key.startswith("extra."))
    return (
        f"reward {number(row['reward'], '.3g'):>5}  advantage {number(row['advantage'], '+.2f'):>6}  "
        f"{row['n_tokens']:>4} tokens, {row['finish_reason']}, {row['verdict.status']}{plain(extra)}: "
        f"{plain(row['completion'])}"
    )


def from_both_ends(rows: Sequence[T]) -> list[T]:
    """First, last, second, last but one, and so on to the middle."""
    return [rows[-1 - place // 2] if place % 2 else rows[place // 2] for place in range(len(rows))]


def ledger(rows: Sequence[Mapping[str, Any]], title: str, json_wanted: bool) -> None:
    """Every update's terms, then in words what they say and which denominators have no stated reason."""
    if json_wanted:
        return as_json(rows)
    lines(title)
    for row in rows:
        value = number(row["value"], ".6g")
        out = ", ".join(f"{n} {why}" for why, n in row["excluded"].items()) or "nothing"
        counted = ", ".join(f"{n} {name}" for name, n in row["counted"].items())
        lines(
            f"update {row['update']}, {_term(row)}: {row['formula']}; the shared part is {value}",
            f"  counted {counted}; left out {out}; "
            f"forwarded {row['forwarded']} of {row['forwarded'] + row['skipped']} rollouts",
            *_numerators(row),
            *_exact(row),
        )
    for term, row in {_term(row): row for row in rows}.items():
        lines(f"\n{term}: {row['rule']}, in update {row['update']}", style="bold")
        lines(*(f"  {sentence}" for sentence in row["words"]), *_why(row["why"]))
    unreasoned = dict.fromkeys(f"objective.why.{row['term']}" for row in rows if not row["why"])
    _unreasoned(list(unreasoned), "set the key to give one")


def _term(row: Mapping[str, Any]) -> str:
    """A ledger row's term, plain; of a scale by part, whose it is."""
    return plain(f"{row['term']} of {row['part']}" if "part" in row else row["term"])


def _numerators(row: Mapping[str, Any]) -> list[str]:
    """The tokens that a row counts but that have no numerator, by reason."""
    lost = ", ".join(f"{tokens} by {reason}" for reason, tokens in row.get("numerators", {}).items() if tokens)
    return [f"  tokens counted without a numerator: {lost}"] if lost else []


def _exact(row: Mapping[str, Any]) -> list[str]:
    """Shares of the answers' own gradients where they were measured, beside those of the weight."""
    exact, weight = row.get("exact_shares") or {}, row["shares"] or {}

    def told(name: str) -> str:
        beside = weight.get(name, {})
        shown = {band: share for band, share in exact[name].items() if share or beside.get(band)}
        return ", ".join(f"{band} {share:.0%} ({number(beside.get(band), '.0%')})" for band, share in shown.items())

    return [f"  measured gradients (weights) by {name.replace('_', ' ')}: {told(name)}" for name in exact]


def explanation(found: Explanation, json_wanted: bool) -> None:
    """Each denominator of a configuration, then what the optimiser cancels, the notices and what was read."""
    if json_wanted:
        return as_json({**asdict(found), "legend": legend(found.averages), "unreasoned": found.unreasoned})
    lines(plain(found.source))
    for row in found.denominators:
        lines(f"\n{plain(row.term)}: {plain(row.rule)}", style="bold")
        value = "depends on the answers" if row.value is None else f"is {row.value:.10g}"
        lines(f"  {row.formula}", *([f"  {row.numbers}"] if row.numbers != row.formula else []))
        lines(f"  the part that the configuration fixes {value}", f"  counted: {row.scope}")
        lines(*(f"  {sentence}" for sentence in row.words))
        lines(f"  gradient accumulation: {row.accumulation}", f"  ranks: {row.world}")
        lines(f"  same gradient however the batch is cut: {row.cut}", *_why(row.why))
    _averages(found.averages)
    lines("", *(f"{term}: none; {reason}" for term, reason in found.absent.items()))
    lines(f"optimiser: {plain(found.optimizer)}", *(f"notice: {text}" for text in found.notices))
    _unreasoned(
        found.unreasoned, "this file has no place for one" if found.why_at is None else "set the key to give one"
    )
    width = max(map(len, found.read), default=0)
    lines(*(["\nread:"] if found.read else []), style="dim")
    for key, entry in found.read.items():
        lines(f"  {key:<{width}} {plain(str(entry['value']))} ({plain(entry['from'])})", style="dim")
    if found.ignored:
        lines(f"not read, as they bear on no denominator: {plain(', '.join(found.ignored))}", style="dim")


def _averages(found: Sequence[Measure]) -> None:
    """Each rule once with its averages, then what their ways of counting mean."""
    for rule in {mean.rule: mean for mean in found}.values():
        lines(f"\naverage {rule.rule}: {rule.formula}", style="bold")
        lines(f"  {rule.says}")
        for mean in [mean for mean in found if mean.rule == rule.rule]:
            counted = "; ".join(f"{answers}: {how}" for answers, how in mean.counted.items())
            why = f" (why: {mean.why})" if mean.why else ""
            lines(plain(f"  {mean.term}: {counted or 'all counted'}{why}"))
    meanings = legend(found)
    lines(*(["\nways of counting:"] if meanings else []), *(f"  {how}: {words}" for how, words in meanings.items()))


def _why(reason: str | None) -> list[str]:
    return [f"  why: {plain(reason)}"] if reason else []


def _unreasoned(names: Sequence[str], remedy: str) -> None:
    """The denominators without a reason, and where one can be given."""
    listed = f"no reason is given for: {', '.join(map(plain, names))}; {remedy}"
    lines(f"\n{listed if names else 'a reason is given for every denominator'}")


def _cost(found: Mapping[str, Any]) -> str:
    sampling = f"a step is estimated to take {found['sampling_seconds_per_step']:.2g} s of sampling"
    if found["update_seconds_per_step"] is None:
        return f"{sampling}; its update and memory are unknown: no answer had a reward to learn from"
    return (
        f"{sampling} and {found['update_seconds_per_step']:.2g} s of update with signal in every group, all steps "
        f"{found['training_seconds'] / 60:.2g} min; peak memory {found['peak_memory_gb']:.2g} GB; validation is not "
        "included"
    )


def preflight(found: Mapping[str, Any], json_wanted: bool) -> None:
    """The look at step 0, and that nothing was written."""
    if json_wanted:
        return as_json(found)
    model, data = found["model"], found["data"]
    counts = {key.removeprefix("verify/"): found[key] for key in found if key.startswith("verify/")}
    verdicts = [f"{count} {status}" for status, count in counts.items() if count]
    names = [key for key in found if key.startswith("rewards/") and key.endswith("/mean")]
    parts = [f"{key.removeprefix('rewards/').removesuffix('/mean')} {number(found[key], '.3f')}" for key in names]
    many = "made by the task as they are needed" if data["train"] is None else _questions(data)
    lines(
        f"model: {model['source']}, {model['parameters']:,} parameters, {model['trainable']:,} of them trained, "
        f"CPU threads: {model['threads']}",
        f"questions: {many}",
        f"step 0, {found['prompts']} prompts, {found['completions']} answers:",
        f"  reward {number(found['reward'], '.3f')} ({', '.join(parts)}); right {number(found['correct/mean'], '.1%')}",
        f"  verdicts: {', '.join(verdicts)}",
        f"  prompts with signal {found['groups/with_signal']:.0%}; dead groups {found['groups/dead']:.0%} "
        f"(all right {found['groups/dead_right']:.0%}, all wrong {found['groups/dead_wrong']:.0%}); "
        f"with fewer than two rewards {found['groups/unscorable']:.0%}",
        f"  length {number(found['completions/mean_length'], '.1f')} tokens, "
        f"{number(found['completions/clipped_ratio'], '.0%')} cut; entropy {number(found['entropy'], '.3f')}",
        _cost(found),
        f"the first prompt as the model reads it: {quoted(found['prompt'])}",
        f"  best paid answer:  {plain(found['answers'][0])}",
        f"  worst paid answer: {plain(found['answers'][-1])}",
        *(["warning: no answer got a reward; look at the reward function"] if found["reward"] is None else []),
        *(["warning: no answer was right; look at the two answers above"] if found["correct/mean"] == 0 else []),
        "nothing was written",
    )


def _questions(data: Mapping[str, Any]) -> str:
    left_out = f"{data['dropped_duplicates']} duplicates and {len(data['bad_gold'])} unreadable answers left out"
    return f"{data['train']} for training, {data['validation']} for validation; {left_out}"


def doctor(found: Mapping[str, Any], json_wanted: bool) -> None:
    """One line a fact."""
    if json_wanted:
        return as_json(found)
    for key, value in found.items():
        if isinstance(value, Mapping):
            lines(key, *(f"  {name:<16} {_fact(fact)}" for name, fact in value.items()))
        else:
            lines(f"{key:<18} {_fact(value)}")


def _fact(value: object) -> str:
    return "none" if value is None else str(value)
