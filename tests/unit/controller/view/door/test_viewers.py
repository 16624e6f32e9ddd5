"""How many pages look at one view."""

import pytest

from controller.view.door.viewers import HEARD_S, MOST, PAGE, Viewers


def ask(viewers, name, now=0.0):
    return viewers.objection({PAGE: name}, now)


def test_one_page_more_than_there_are_places_is_told_so_and_the_others_are_served():
    viewers = Viewers()
    for number in range(MOST):
        assert ask(viewers, f"page{number}") is None
    denied = ask(viewers, "late", 1.0)
    assert denied is not None
    assert denied.status == 429
    assert "20 pages" in denied.reason
    assert ask(viewers, "page7", 1.0) is None, "who looks already keeps the place"


def test_a_page_that_is_closed_leaves_its_place():
    viewers = Viewers(most=2)
    assert ask(viewers, "a") is ask(viewers, "b") is None
    assert ask(viewers, "b", HEARD_S / 2) is None
    assert ask(viewers, "c", HEARD_S - 0.1) is not None
    assert ask(viewers, "c", HEARD_S) is None, "a has not asked for so long"
    assert ask(viewers, "a", HEARD_S) is not None


def test_programs_are_not_counted():
    viewers = Viewers(most=1)
    assert ask(viewers, "a") is None
    assert viewers.objection({}, 0.0) is None


@pytest.mark.parametrize("name", ["", "a b", "x" * 41, "é", "a\n"])
def test_what_is_no_name_takes_no_place(name):
    viewers = Viewers(most=1)
    denied = ask(viewers, name)
    assert denied is not None
    assert denied.status == 400
    assert ask(viewers, "a") is None
