"""The page in a real browser, opened from disk."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_run import HOSTILE
from playwright.sync_api import Browser, Page, sync_playwright

from cupola.dashboard import export

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        with playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]) as launched:
            yield launched


def open_page(browser: Browser, path: Path, **options: Any) -> tuple[Page, list[str]]:
    """The page and everything it complained of or asked for beyond itself."""
    page, noise = browser.new_page(**options), list[str]()
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: noise.append(request.url))
    page.goto(path.as_uri())
    return page, [text for text in noise if text != path.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_disk_without_a_sound(browser: Browser, run: Path, tmp_path: Path, scheme: str) -> None:
    page, noise = open_page(browser, export(run, tmp_path / "r.html"), color_scheme=scheme)
    assert noise == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(252, 252, 251)", "dark": "rgb(20, 22, 26)"}[scheme], "the style sheet is let in"
    assert page.locator("svg.plot").count() == 10
    page.close()


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, hostile_run: Path, tmp_path: Path) -> None:
    page, noise = open_page(browser, export(hostile_run, tmp_path / "h.html"))
    assert noise == []
    assert page.title() == "hostile · cupola"
    shown = page.locator(".answers .completion").all_inner_texts()
    assert HOSTILE.replace("\u202e", "\\u202e").replace("\x07", "\\x07") in shown
    page.close()


@pytest.mark.parametrize("width", [360, 820])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, run: Path, hostile_run: Path, tmp_path: Path, width: int
) -> None:
    for root in (run, hostile_run):
        page, _ = open_page(browser, export(root, tmp_path / "n.html"), viewport={"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.close()


def test_values_are_a_click_away_without_a_script(browser: Browser, run: Path, tmp_path: Path) -> None:
    page, _ = open_page(browser, export(run, tmp_path / "r.html"), java_script_enabled=False)
    values = page.locator("figure").first.locator("table")
    assert not values.is_visible()
    page.locator("figure").first.locator("summary").click()
    assert values.is_visible()
    assert values.locator("tbody tr").count() == 61
    page.close()


def test_it_prints(browser: Browser, run: Path, tmp_path: Path) -> None:
    page, _ = open_page(browser, export(run, tmp_path / "r.html"))
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()
