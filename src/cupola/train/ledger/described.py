"""Any loop's denominators, named rule by rule in a few lines of TOML or JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cupola.core.records import RecipeError
from cupola.train.ledger.averages import AVERAGES, COUNTED, SUPERVISED, TIES, Said, measure
from cupola.train.ledger.explained import Denominator, Explanation
from cupola.train.ledger.rows import CANCELS
from cupola.train.ledger.rules import RULES, Rule

SECTIONS: dict[str, Collection[str]] = {
    "loss": RULES,
    "supervised": SUPERVISED,
    "evaluation": AVERAGES,
    "counted": COUNTED,
    "why": (),
}
ONE_MEAN = "does not change it where the whole optimiser step is counted; micro-batches counted apart each count alike"
ONE_COUNT = "does not change it where counts are summed over ranks; ranks counted apart each count alike"
CUT = "where the whole optimiser step is counted"


def explain(place: str, table: Mapping[str, Any]) -> Explanation:
    """The denominators of a loop that says which rule each of its terms has.

    `loss`, `supervised` and `evaluation` name terms and their rules (`RULES`, `SUPERVISED`, `AVERAGES`), `counted` how
    an evaluation counts its `truncated`, `unparsed` and other answers and its `ties`, `why` the reason of each term.
    Raises RecipeError naming file and key for an unknown section, rule or term.
    """
    parts = {name: _section(place, name, table.get(name, {})) for name in SECTIONS}
    unknown = next((key for key in table if key not in SECTIONS), None)
    if unknown is not None:
        raise RecipeError(f"{place}: {unknown}: unknown section; there are {', '.join(SECTIONS)}")
    terms = [term for name in ("loss", "supervised", "evaluation") for term in parts[name]]
    if not terms:
        raise RecipeError(f"{place}: names no term; give one below loss, supervised or evaluation")
    why = parts["why"]
    for term in (*why, *terms):
        if term not in terms or terms.count(term) > 1:
            raise RecipeError(f"{place}: {term}: should be one term of one section, there are {', '.join(terms)}")
    rows = [_row(term, rule, RULES[rule], why) for term, rule in parts["loss"].items()]
    rows += [_row(term, rule, SUPERVISED[rule], why) for term, rule in parts["supervised"].items()]
    averages = [measure(term, rule, parts["counted"], why.get(term)) for term, rule in parts["evaluation"].items()]
    return Explanation(f"loop {place}", rows, {}, CANCELS, [], averages=averages, why_at="why.")


def _section(place: str, name: str, section: Any) -> dict[str, str]:
    """A section's keys with their rules, or its reasons."""
    if not isinstance(section, Mapping):
        raise RecipeError(f"{place}: {name}: is a table of keys, got {section!r:.80}")
    for key, value in section.items():
        known = TIES if (name, key) == ("counted", "ties") else SECTIONS[name]
        if not isinstance(value, str):
            raise RecipeError(f"{place}: {name}.{key}: should be text, got {value!r:.80}")
        if known and value not in known:
            raise RecipeError(f"{place}: {name}.{key}: should be one of {', '.join(known)}, got {value!r:.80}")
    return dict(section)


def _row(term: str, rule: str, said: Rule | Said, why: Mapping[str, str]) -> Denominator:
    return Denominator(
        term=term,
        rule=rule,
        formula=said.formula,
        numbers=said.formula,
        value=None,
        scope="what the loop counts: the whole optimiser step, or less",
        words=[said.says],
        accumulation=said.by_cut or ONE_MEAN,
        world=said.by_cut or ONE_COUNT,
        cut=f"no: {said.by_cut}" if said.by_cut else f"yes, {CUT}",
        why=why.get(term),
    )
