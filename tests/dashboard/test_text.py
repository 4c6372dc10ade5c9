import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.dashboard.text import duration, number, percent, plain, points, prose, shorten, visible


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "–"),
        (0, "0"),
        (1.0, "1"),
        (0.5024, "0.502"),
        (-0.25, "−0.250"),
        (3.14159, "3.14"),
        (128.04, "128.0"),
        (12800, "12,800"),
        (0.00008, "8e−05"),
    ],
)
def test_a_number_has_about_three_figures(value: object, words: str) -> None:
    assert number(value) == words


def test_an_advantage_always_has_its_sign() -> None:
    assert [number(value, sign=True) for value in (1.234, -0.5, 0.0)] == ["+1.23", "−0.50", "+0.00"]


def test_shares_and_their_differences() -> None:
    assert percent(0.4567) == "45.7%"
    assert points(-0.0123) == "−1.2"
    assert (percent(None), points(None)) == ("–", "–")


def test_durations() -> None:
    assert [duration(s) for s in (42, 185, 7620, None)] == ["42 s", "3 min 05 s", "2 h 07 min", "–"]


def test_hidden_characters_are_spelled_out_and_markup_is_text() -> None:
    assert visible("a\u202eb\x07<i>\n\t") == (
        'a<span class="esc">\\u202e</span>b<span class="esc">\\x07</span>&lt;i&gt;\n\t'
    )


def test_a_typed_escape_is_not_dressed_as_a_hidden_character() -> None:
    assert visible("\\u202e") == "\\u202e"


def test_astral_and_lone_surrogate_characters() -> None:
    assert plain("\U000e0041\ud800") == "\\U000e0041\\ud800"


def test_prose_sets_backticks_as_code() -> None:
    assert prose("set `a<b` now") == "set <code>a&lt;b</code> now"


def test_a_long_text_keeps_its_end() -> None:
    assert shorten("abcdefghij", 4) == ("abc", 6, "j")
    assert shorten("abcd", 4) == ("abcd", 0, "")


@given(st.text(), st.integers(4, 50))
def test_shortening_accounts_for_every_character(text: str, limit: int) -> None:
    head, left_out, tail = shorten(text, limit)
    assert len(head) + left_out + len(tail) == len(text)
    assert text.startswith(head)
    assert text.endswith(tail)


@given(st.text(alphabet=st.characters()))
def test_no_text_opens_a_tag_or_turns_the_line_round(text: str) -> None:
    shown = visible(text).replace('<span class="esc">', "").replace("</span>", "")
    assert not set(shown) & set("<>\"'\u202e\u2066\u200b\x00\r")
