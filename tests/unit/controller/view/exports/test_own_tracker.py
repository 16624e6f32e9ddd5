"""A tracker of the user's that errs costs nobody else a line, a second or a wrong word."""

import json
import re
from contextlib import nullcontext

import pytest

from controller.cli.main import main
from controller.view.exports import outgoing
from controller.view.exports.outgoing import Looker, Outgoing
from controller.view.exports.own_tracker import LinesOfItsOwn
from controller.view.exports.trackers import Sending, make_tracker
from protocol.errors import ConfigError
from tests.support.shown_run import recorded

MINE = """
class Kept:
    def __init__(self, run, config, run_id):
        self.run = run
        config.clear()

    def note(self, *words):
        with open(self.run / type(self).__name__, "a") as file:
            print(*words, file=file)

    def begin(self, lines):
        self.note("begin", *(one["step"] for one in lines))

    def step(self, one):
        self.note(one["step"])

    def close(self):
        self.note("close")


class Clears(Kept):
    def begin(self, lines):
        for one in lines:
            one["staleness/hist"].clear()
            one.clear()

    step = close = lambda self, *lines: [one.clear() for one in lines]


class Later(Kept):
    async def step(self, one):
        self.note(one["step"])


class NeverCloses(Kept):
    def close(self):
        raise ValueError("at the close")


async def make_later(run, config, run_id):
    return Kept(run, config, run_id)


def refuses(run, config, run_id):
    raise OSError("nobody there")


def nothing(run, config, run_id):
    return None
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


def line(step):
    return {"step": step, "time_s": 1.0, "staleness/hist": {"0": 3}}


def put(run, step):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line(step)) + "\n")


def test_what_a_tracker_does_to_its_lines_and_settings_reaches_nobody_else(tmp_path, mine):
    lines, config = [line(1), line(2)], {"a": {"b": 1}}
    tracker = make_tracker(mine("Clears"), tmp_path, config, "id")
    tracker.begin(lines)
    tracker.step(lines[1])
    tracker.close()
    assert lines == [line(1), line(2)]
    assert config == {"a": {"b": 1}}


def test_trackers_side_by_side_get_all_steps_whatever_one_does_to_its_own(tmp_path, mine):
    put(tmp_path, 1)
    put(tmp_path, 2)
    told = []
    wanted = Outgoing(str(tmp_path), "id", {}, [mine("Clears"), mine("Kept")])
    Looker(wanted, tell=told.append).finish()
    assert (tmp_path / "Kept").read_text() == "begin 1 2\nclose\n"
    assert told == []


def test_a_tracker_whose_methods_nobody_runs_is_refused(tmp_path, mine):
    tracker = make_tracker(mine("Later"), tmp_path, {}, "id")
    tracker.begin([line(1)])
    with pytest.raises(ConfigError, match=r"mine\.py:Later has a step that answers <coroutine .* plain func"):
        tracker.step(line(2))


@pytest.mark.parametrize(("name", "made"), [("nothing", "None"), ("make_later", "<coroutine")])
def test_what_is_no_tracker_is_refused_when_it_is_made(tmp_path, mine, name, made):
    words = f"mine.py:{name} made {made}"
    with pytest.raises(ConfigError, match=rf"{re.escape(words)}.*, which has no begin, step.*; expected"):
        make_tracker(mine(name), tmp_path, {}, "id")


def test_a_tracker_that_ends_its_thread_is_told():
    told = []

    class Leaves:
        def begin(self, lines):
            raise SystemExit("enough")

    sending = Sending("leaving", Leaves, tell=told.append, again=lambda end: nullcontext([]))
    sending.send([line(1)], is_anew=False)
    assert sending.finish(60)
    (sentence,) = told
    assert "leaving gets nothing more: SystemExit: enough. The run goes on" in sentence


def test_one_that_cannot_close_is_told_once_and_holds_nobody_up(tmp_path, mine, monkeypatch):
    """It has ended with its error: nothing more comes that it could wait for."""
    put(tmp_path, 1)
    told = []
    monkeypatch.setattr(outgoing, "END_S", 60.0)
    wanted = Outgoing(str(tmp_path), "id", {}, [mine("NeverCloses"), mine("refuses"), mine("Kept")])
    Looker(wanted, tell=told.append).finish()
    assert sorted(re.findall(r"(\w+) gets nothing more", " ".join(told))) == ["NeverCloses", "refuses"]
    assert len(told) == 2


def test_one_that_hangs_takes_no_time_of_the_others_to_close(tmp_path, mine, monkeypatch):
    """All are told of the end first; so whoever comes behind it in the list has closed meanwhile."""
    put(tmp_path, 1)
    told, ended = [], []
    monkeypatch.setattr(outgoing, "END_S", 0.0)
    monkeypatch.setattr(Sending, "finish", lambda self, within_s: ended.append(self._is_ended) or True)
    Looker(Outgoing(str(tmp_path), "id", {}, [mine("Kept"), mine("Kept")]), tell=told.append).finish()
    assert ended == [True, True]


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("refuses", "refuses did not take the run: OSError: nobody there", 1),
        ("nothing", "nothing made None, which has no begin, step, close; expected", 2),
        ("Kept", "1 steps of", 0),
    ],
)
def test_an_export_says_in_a_sentence_what_became_of_it(tmp_path, mine, capsys, name, words, code):
    run = recorded(tmp_path / "run")
    (run / "metrics.jsonl").write_text(json.dumps(line(1)) + "\n")
    assert main(["export", str(run), "--to", mine(name)]) == code
    assert words in " ".join("".join(capsys.readouterr()).split())


def test_lines_of_its_own_are_a_sequence():
    lines = [{"step": 1, "staleness/hist": {"0": 2}}, {"step": 2}]
    own = LinesOfItsOwn(lines)
    assert (len(own), own[1], own[-1:], [*own]) == (2, lines[1], lines[1:], lines)
    own[0]["staleness/hist"].clear()
    own[:1][0].clear()
    assert lines[0] == {"step": 1, "staleness/hist": {"0": 2}}
