import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import pytest
from dashboard_run import HOSTILE, begin, write_evaluation_of, write_run

from cupola.core.catalogue import Gap
from cupola.core.records import Finding, RunFolderError
from cupola.dashboard import export
from cupola.workflows.manifest import attempt_ended

LEVELS = {"key": "reward", "first": 0.5, "level": 0.96, "signal": 0.2}
SOLVED = Finding("flat_near_ceiling", "info", (40, 60), {"reading": "reached", **LEVELS})
FLOOR = Finding("flat_near_floor", "warning", (0, 60), {"reading": "any", **LEVELS, "key": "<i>reward</i>"})


class Outline(HTMLParser):
    """Tags and attributes of a page, and whether every element is closed in order."""

    VOID = frozenset({"meta", "br", "link"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(root: Path, out: Path, findings: list[Finding] | None = None) -> str:
    return export(root, out, findings).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(run, tmp_path_factory.mktemp("out") / "report.html", [SOLVED, FLOOR])


def test_the_page_is_well_formed_and_reaches_for_nothing(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    assert not {tag for tag, _ in outline.tags} & {"script", "link", "img", "iframe", "object", "form", "base"}
    for _, attributes in outline.tags:
        assert "style" not in attributes, "the policy would refuse it"
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert attributes.get("href", "#") is None or str(attributes.get("href", "#")).startswith("#")


def test_the_policy_names_the_style_sheet_by_its_digest(page: str) -> None:
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(a["content"] for _, a in Outline(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_findings_stand_first_and_the_severest_on_top(page: str) -> None:
    order = ["Flat near the floor", "Solved", "What was gained", "<h2>Charts", "Validation questions", "<h2>Ledger"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_every_section_tells_its_numbers(page: str) -> None:
    for text in (
        "41.0%",
        "73.9%",
        "+48.0",  # pass@1: 50 questions gain 1/2, 28 gain 3/4, 2 gain 1
        "−0.8 to +4.8",  # pass@4: 2 questions of 100 gain 1; 2 ± 1.984 · sqrt(1.96 / 99 / 100) · 100 points
        "<strong>learned</strong>",
        "cap 32",
        "16,384",  # 512 rollouts of at most 32 tokens
        "13,010 tokens",  # 512 · 25, and 7 more for the last answer of each of the 30 groups that are not dead
        "Length must not be paid for.",
        version("torch"),
    ):
        assert text in page


def test_not_diagnosed_is_not_the_same_as_nothing_found(run: Path, tmp_path: Path) -> None:
    assert "has not been diagnosed" in page_of(run, tmp_path / "a.html")
    assert "Diagnosis reported nothing" in page_of(run, tmp_path / "b.html", [])


def test_what_could_not_be_judged_is_listed(run: Path, tmp_path: Path) -> None:
    page = export(run, tmp_path / "g.html", [], [Gap("learning", "validation <b>", 2, 3)]).read_text(encoding="utf-8")
    assert Outline(page).open == []
    assert "<code>learning</code> 2 of 3 points of <code>validation &lt;b&gt;</code>" in page
    assert "Could not be judged" not in page_of(run, tmp_path / "h.html", [])


def test_hostile_text_stays_text(hostile_run: Path, tmp_path: Path) -> None:
    page = page_of(hostile_run, tmp_path / "h.html")
    outline = Outline(page)
    assert outline.open == []
    assert "script" not in {tag for tag, _ in outline.tags}
    assert "\u202e" not in page
    assert "\x07" not in page
    assert '<span class="esc">\\u202e</span>' in page
    assert HOSTILE not in page


def test_a_long_completion_says_how_much_is_left_out(hostile_run: Path, tmp_path: Path) -> None:
    page = page_of(hostile_run, tmp_path / "h.html")
    assert "4,407 characters left out" in page
    assert "the end" in page


def test_an_unscored_completion_has_no_advantage_and_no_reward(hostile_run: Path, tmp_path: Path) -> None:
    page = page_of(hostile_run, tmp_path / "h.html")
    assert '<span class="advantage">–</span>' in page
    assert "reward –" in page
    assert "not judged" in page


def test_a_run_without_a_step_and_a_folder_of_metrics_alone(tmp_path: Path) -> None:
    begin(tmp_path / "new")
    page = page_of(tmp_path / "new", tmp_path / "new.html")
    assert "No step has been recorded yet." in page
    assert "No training rollouts are recorded." in page
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported" / "metrics.jsonl").write_text(
        '{"step": 1, "reward": 0.5}\n{"step": 1, "split": "validation", "correct/mean": 0.25}\n'
    )
    page = page_of(tmp_path / "imported", tmp_path / "imported.html")
    assert "Total 0.500 at step 1." in page
    assert "No values recorded for: prompts with signal" in page
    assert "No recipe is recorded" in page


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    attempt_ended(begin(tmp_path / "f"), "failed", "disk full <b>")
    assert "disk full &lt;b&gt;" in page_of(tmp_path / "f", tmp_path / "f.html")


def test_one_step(tmp_path: Path) -> None:
    write_run(tmp_path / "one", 1)
    assert Outline(page_of(tmp_path / "one", tmp_path / "one.html")).open == []


def test_the_report_stands_in_the_run_folder_by_default(tmp_path: Path) -> None:
    root = write_run(tmp_path / "one", 1)
    assert export(root) == root / "report.html"
    assert (root / "report.html").stat().st_size > 1000


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such run folder"):
        export(tmp_path / "nothing", tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_a_hundred_steps_of_512_rollouts_stay_below_a_megabyte_and_a_half(tmp_path: Path) -> None:
    root = write_run(tmp_path / "large", 100, prompts=32, size=16)
    write_evaluation_of(root)
    assert export(root).stat().st_size < 1_500_000
