"""What the view answers out of the pass over a run's history."""

import pytest

from tests.support.shown_run import Browser, recorded

RUN = "/api/runs/0"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    return Browser(recorded(tmp_path_factory.mktemp("over") / "run"))


def passed(browser, path):
    """The answer, once the pass is at its end."""
    _, found = browser.json(path)
    while found["passed"] < found["of"]:
        _, found = browser.json(path)
    return found


def test_why_not_more_is_of_the_moment_that_is_shown(browser):
    end = passed(browser, f"{RUN}/starts")
    assert [one["step"] for one in end["steps"]] == [1, 2, 3, 4, 5]
    assert sum(end["seconds"].values()) == pytest.approx(end["end_s"] - end["begin_s"])
    _, moment = browser.json(f"{RUN}/moment?step=2")
    _, earlier = browser.json(f"{RUN}/starts?step=2")
    assert [one["step"] for one in earlier["steps"]] == [1, 2, 3]
    assert earlier["end_s"] == moment["now_s"] < end["end_s"]


def test_ages_are_a_column_per_step(browser):
    found = passed(browser, f"{RUN}/ages")
    assert found["steps"] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert all(sum(column) > 0 for column in found["tokens"])
    assert [sum(column) for column in found["trajectories"]] == [16, 16, 16, 16]


def test_a_moment_that_is_none_is_refused(browser):
    status, found = browser.json(f"{RUN}/starts?event=x")
    assert status == 404
    assert "is no moment" in found["error"]
