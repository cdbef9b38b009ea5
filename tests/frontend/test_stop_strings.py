"""Stop strings across piece borders: cut exactly, hold back no more than needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringcast.frontend.stop_strings import StopStrings


def _run(stops: list[str], pieces: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """The shown pieces and what matched; stops feeding at a match."""
    matcher = StopStrings(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    shown.append(matcher.flush())
    return shown, matcher.matched


def test_a_stop_string_over_several_pieces_shows_nothing_of_itself() -> None:
    shown, matched = _run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"])
    assert shown == ["ABC", "", "", "", ""]
    assert matched == "DEFGHIJ"


def test_text_before_a_stop_string_inside_a_piece_is_shown() -> None:
    shown, matched = _run(["beta gamma"], ["alpha b", "eta", " gamma delta"])
    assert "".join(shown) == "alpha "
    assert matched == "beta gamma"


def test_included_stop_string_is_shown_and_nothing_after_it() -> None:
    shown, matched = _run(["beta gamma"], ["alpha b", "eta", " gamma delta"], include=True)
    assert "".join(shown) == "alpha beta gamma"
    assert matched == "beta gamma"


def test_only_what_could_become_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["</answer>"])
    assert matcher.push("a < b") == "a < b"
    assert matcher.push(" <") == " "
    assert matcher.push("/") == ""
    assert matcher.push("x") == "</x"
    assert matcher.push("</an") == ""
    assert matcher.flush() == "</an"


def test_with_inclusion_nothing_is_held_back() -> None:
    matcher = StopStrings(["END"], include=True)
    assert [matcher.push(piece) for piece in ("x E", "N", "D y")] == ["x E", "N", "D"]


def test_the_stop_string_completed_first_wins_whatever_the_order_given() -> None:
    for stops in (["bcd", "c"], ["c", "bcd"]):
        shown, matched = _run(stops, ["abcd"])
        assert ("".join(shown), matched) == ("ab", "c")
    shown, matched = _run(["c", "abc"], ["abc"])
    assert ("".join(shown), matched) == ("", "abc")


def test_a_false_start_inside_a_false_start_is_released() -> None:
    shown, matched = _run(["aab"], ["a", "a", "a", "b", "!"])
    assert "".join(shown) == "a"
    assert matched == "aab"


_letters = st.text(alphabet="ab ", max_size=12)


@given(
    pieces=st.lists(_letters, max_size=12),
    stops=st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
)
def test_the_result_does_not_depend_on_where_pieces_are_cut(pieces: list[str], stops: list[str], include: bool) -> None:
    text = "".join(pieces)
    by_piece, matched_by_piece = _run(stops, pieces, include=include)
    by_character, matched_by_character = _run(stops, list(text), include=include)
    assert "".join(by_piece) == "".join(by_character)
    assert matched_by_piece == matched_by_character
    if matched_by_piece is None:
        assert "".join(by_piece) == text
        assert not any(stop in text for stop in stops)
    else:
        shown = "".join(by_piece)
        assert text.startswith(shown)
        assert not include or shown.endswith(matched_by_piece)


@given(pieces=st.lists(_letters, max_size=12), stop=st.text(alphabet="ab ", min_size=1, max_size=4))
def test_what_is_held_back_is_a_beginning_of_the_stop_string(pieces: list[str], stop: str) -> None:
    matcher = StopStrings([stop])
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.matched is not None:
            break
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert stop.startswith(held)
        assert len(held) < len(stop)


def test_a_stop_string_is_passed_over_while_none_may_match() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("an END, ", may_match=False) == "an END, "
    assert matcher.push("the END") == "the "
    assert matcher.matched == "END"


def test_a_stop_string_that_begins_before_it_may_match_and_ends_after_counts() -> None:
    matcher = StopStrings(["DEFGHIJ"])
    assert [matcher.push(piece, may_match=False) for piece in ("A", "DEF", "G")] == ["A", "", ""]
    assert [matcher.push("HI"), matcher.push("J")] == ["", ""]
    assert matcher.matched == "DEFGHIJ"


def test_what_was_passed_over_does_not_match_later() -> None:
    matcher = StopStrings(["abc", "b"])
    assert matcher.push("ab", may_match=False) == ""  # "abc" may still come
    assert matcher.push("x") == "abx"
    assert matcher.matched is None


@given(
    pieces=st.lists(_letters, max_size=12),
    stops=st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    muted=st.integers(0, 12),
)
def test_the_first_stop_string_completed_after_the_muted_pieces_ends_it(
    pieces: list[str], stops: list[str], include: bool, muted: int
) -> None:
    text, muted_length = "".join(pieces), len("".join(pieces[:muted]))
    ends = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(muted_length + 1, len(text) + 1)
        if text[:end].endswith(stop)
    ]
    matcher = StopStrings(stops, include=include)
    shown = ""
    for number, piece in enumerate(pieces):
        shown += matcher.push(piece, may_match=number >= muted)
        if matcher.matched is not None:
            break
    else:
        shown += matcher.flush()
    if not ends:
        assert (shown, matcher.matched) == (text, None)
        return
    end, _, stop = min(ends)
    assert matcher.matched == stop
    assert shown == (text[:end] if include else text[: end - len(stop)])
