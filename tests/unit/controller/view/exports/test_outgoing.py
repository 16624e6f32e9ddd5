"""The process that sends: it reads the run, tells its end, and leaves nothing behind."""

import asyncio
import json
import os
from threading import Event

import pytest

from controller.cli.alarm_watch import AlarmWatch
from controller.cli.main import main
from controller.config.models import Config
from controller.view.exports import beside, jsonl_tail
from controller.view.exports.beside import exports_beside, outgoing, run_id
from controller.view.exports.jsonl_tail import StepLines
from controller.view.exports.outgoing import Looker, Outgoing
from protocol.errors import RunError
from tests.support.shown_run import recorded

LIMIT_S = 60
TELLS = "import json, sys; open({!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))"


def run_in(folder):
    run = folder / "run"
    (run / "logs").mkdir(parents=True)
    return run


def put(run, step, **more):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "time_s": float(step), "reward/mean": 0.5, **more}) + "\n")


def test_nobody_to_send_to_is_no_process(tmp_path):
    assert outgoing(tmp_path, Config()) is None
    assert not (tmp_path / "trackers.json").exists()


def test_a_run_keeps_its_name_for_trackers(tmp_path):
    assert run_id(tmp_path) == run_id(tmp_path)
    assert len(run_id(tmp_path)) == 12


def test_secrets_of_the_configuration_are_not_sent(tmp_path, monkeypatch):
    config = Config.model_validate(
        {"logging": {"trackers": ("tensorboard",)}, "notify": {"url": "http://a/secret"}}
    )
    config = config.with_spellings({("notify", "url"): "${HOOK}"})
    wanted = outgoing(tmp_path, config)
    assert wanted.url == "http://a/secret"
    assert "secret" not in json.dumps(wanted.config)


async def test_it_sends_steps_and_the_end_and_ends_with_the_run(tmp_path):
    run, warned = run_in(tmp_path), []
    told = tmp_path / "told"
    script = tmp_path / "tell.sh"
    script.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    script.chmod(0o700)
    config = Config.model_validate(
        {"logging": {"trackers": ("tensorboard",)}, "notify": {"command": (str(script),)}}
    )
    async with asyncio.timeout(LIMIT_S), exports_beside(run, config, on_warning=warned.append):
        put(run, 1)
        put(run, 2)
        (run / "summary.json").write_text(json.dumps({"steps": 2, "time_s": 2.0, "is_success": True}))
    assert warned == []
    assert "run done Done: 2 train steps" in told.read_text()
    assert (run / "tensorboard").is_dir()


async def test_a_process_that_cannot_start_or_dies_is_one_sentence(tmp_path, monkeypatch):
    run = run_in(tmp_path)
    config = Config.model_validate({"logging": {"trackers": ("tensorboard",)}})
    for program, words in ((("/nowhere",), "Nothing is sent"), (("/bin/false",), "exit code 1")):
        warned = []
        monkeypatch.setattr(beside, "PROGRAM", program)
        async with asyncio.timeout(LIMIT_S), exports_beside(run, config, on_warning=warned.append):
            pass
        assert len(warned) == 1
        assert words in warned[0]


async def test_a_line_of_any_length_is_heard_to_its_bound_and_so_is_the_one_behind_it(tmp_path, monkeypatch):
    run, warned = run_in(tmp_path), []
    config = Config.model_validate({"logging": {"trackers": ("tensorboard",)}})
    monkeypatch.setattr(beside, "PROGRAM", ("/bin/sh", "-c", "printf %0200000d 7; echo; echo the last"))
    async with asyncio.timeout(LIMIT_S), exports_beside(run, config, on_warning=warned.append):
        pass
    assert warned == ["0" * beside.MOST_CHARS, "the last"]


TRACKER = """
class Tracker:
    def begin(self, lines): raise ValueError("of several" + chr(10) + "lines, " + "y" * 70_000)
    def step(self, line): pass
    def evaluation(self, line): pass
    def close(self): pass

def make(run, config, run_id):
    print("the configuration is", config)
    print("x" * 70_000)
    return Tracker()
"""


async def test_what_a_tracker_prints_is_in_its_log_and_what_ends_it_is_one_sentence_of_any_length(tmp_path):
    run, warned = run_in(tmp_path), []
    (tmp_path / "my_tracker.py").write_text(TRACKER)
    config = Config.model_validate({"logging": {"trackers": (f"{tmp_path}/my_tracker.py:make",)}})
    put(run, 1)
    async with asyncio.timeout(LIMIT_S), exports_beside(run, config, on_warning=warned.append):
        pass
    (sentence,) = warned
    assert "of several lines, yyy" in sentence
    assert sentence.endswith("sends all of it later.")
    printed = (run / "logs" / "exports.log").read_text()
    assert "the configuration is" in printed
    assert "x" * 70_000 in printed


def wanted_of(run, **more):
    return Outgoing(run=str(run), run_id="id", config={"staleness": {"max_staleness": 1}}, **more)


def test_alarms_standstills_and_an_end_without_a_word_are_told(tmp_path, monkeypatch):
    run, sent = run_in(tmp_path), []
    monkeypatch.setattr(
        "controller.view.exports.outgoing.post", lambda url, name, news: sent.append(news) or ""
    )
    looker = Looker(wanted_of(run, url="http://hook", on=["alarm", "stuck", "failed"]), tell=pytest.fail)
    put(run, 1, **{"staleness/max": 7})
    wait = {
        "owner": "the next step",
        "what": "rewards",
        "for_s": 400.0,
        "then": "nothing",
        "is_overdue": True,
    }
    alarm = {"name": "disk", "owner": "controller", "evidence": "3 GB are free", "remedy": "Free some."}
    (run / "status.json").write_text(json.dumps({"waits": [wait], "alarms": [alarm]}))
    looker.look()
    looker.look()
    looker.finish()
    assert [(one.event, one.cause) for one in sent] == [
        ("alarm", "bound broken"), ("alarm", "disk"), ("stuck", "the next step"), ("failed", "end")
    ]  # fmt: skip
    assert sent[1].text == "disk (controller): 3 GB are free. Free some."
    assert "has waited 400 s for rewards" in sent[2].text
    assert "without a word" in sent[3].text


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_killed_controller_waited_for_is_not_told_of_the_one_after_it(tmp_path, monkeypatch, is_late):
    """Nor is what that one waits for kept back, if it has said so before this process began."""
    run, sent = run_in(tmp_path), []
    monkeypatch.setattr(
        "controller.view.exports.outgoing.post", lambda url, name, news: sent.append(news.cause) or ""
    )
    status, wait = run / "status.json", {"what": "rewards", "for_s": 400.0, "then": "", "is_overdue": True}
    status.write_text(json.dumps({"waits": [{"owner": "before", **wait}]}))
    wanted = outgoing(run, Config.model_validate({"notify": {"url": "http://hook", "events": ("stuck",)}}))
    lookers = [] if is_late else [Looker(wanted, tell=pytest.fail)]
    for looker in lookers:
        looker.look()
    (run / "new").write_text(json.dumps({"waits": [{"owner": "now", **wait}]}))
    (run / "new").rename(status)
    looker = lookers[0] if lookers else Looker(wanted, tell=pytest.fail)
    looker.look()
    looker.finish()
    assert sent == ["now"]


def test_who_is_overdue_only_after_the_step_that_waits_is_told_too(tmp_path, monkeypatch):
    run, sent = run_in(tmp_path), []
    monkeypatch.setattr(
        "controller.view.exports.outgoing.post", lambda url, name, news: sent.append(news.cause) or ""
    )
    looker = Looker(wanted_of(run, url="http://hook", on=["stuck"]), tell=pytest.fail)
    names = ["reward-0", *(f"rollout-{number}" for number in range(9))]
    overdue: list[str] = []

    def look(*more: str) -> None:
        overdue.extend(more)
        waits = [
            {"owner": owner, "what": "rewards", "for_s": 40.0, "then": "nothing", "is_overdue": True}
            for owner in overdue
        ]
        status = {"waits": waits, "workers": [{"name": name} for name in names]}
        (run / "status.json").write_text(json.dumps(status))
        looker.look()

    look("the next step")
    look("group 7", "reward-0")
    look(*names[1:])
    looker.finish()
    assert sent == ["the next step", "reward-0", "rollout-0"]  # a whole cluster is not a hundred messages


def test_what_alarms_look_at_is_bounded(tmp_path):
    run = run_in(tmp_path)
    looker = Looker(wanted_of(run), tell=pytest.fail)
    with (run / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step, "time_s": 1.0}) + "\n" for step in range(1, 1202))
    looker.look()
    put(run, 1202)
    looker.look()
    assert [line["step"] for line in looker._lines] == [*range(1, 21), *range(203, 1203)]
    looker.finish()


def made(path, lines):
    """Train steps that a run has made, in metrics.jsonl."""
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def collapsing(steps):
    """Lines of a run whose entropy falls early, and again, with its reward, in the last 40 steps."""
    for n in range(1, steps + 1):
        is_lost = n > steps - 40
        entropy = 2.0 if n <= 100 else 0.3 if is_lost else 0.5
        yield {"step": n, "entropy": entropy, "reward/mean": 0.3 if is_lost else 0.8}


async def test_an_alarm_is_on_the_console_once(tmp_path):
    warned = []
    watch = AlarmWatch(tmp_path, warned.append, bound=1)
    for step in range(1, 5):
        made(tmp_path, [{"step": step, "staleness/max": 7}])
        await watch.look()
    assert len(warned) == 1
    assert warned[0].startswith("ALARM, bound broken (staleness)")


@pytest.mark.parametrize(("steps", "before"), [(300, 262), (1500, 0), (1500, 1490)])
async def test_what_a_run_was_at_first_counts_however_long_ago_and_in_whichever_life(tmp_path, steps, before):
    warned, lines = [], list(collapsing(steps))
    made(tmp_path, lines[:before])  # when it was killed
    watch = AlarmWatch(tmp_path, warned.append, bound=1)
    for line in lines[before:]:
        made(tmp_path, [line])
        await watch.look()
    assert [text.split(" (")[0] for text in warned] == ["ALARM, entropy collapse"]


async def test_a_damaged_file_is_no_alarm_of_learning_and_is_told_once(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text("{\n")
    watch = AlarmWatch(tmp_path, pytest.fail, bound=1)
    await watch.look()
    await watch.look()
    (told,) = caplog.messages
    assert told.startswith("No alarms of learning, as long as it is so: ")
    assert "metrics.jsonl" in told


def test_a_finished_run_is_exported(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1, "time_s": 1.0}\n')
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    assert "1 steps" in capsys.readouterr().out
    assert (run / "tensorboard").is_dir()
    assert main(["export", str(run), "--to", "nothing"]) == 2
    assert main(["export", str(tmp_path / "none"), "--to", "tensorboard"]) == 2
    (run / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert main(["export", str(run), "--to", "tensorboard"]) == 1
    assert "metrics.jsonl has no steps, so there is nothing to send" in capsys.readouterr().err
    os.mkfifo(run / "metrics.jsonl")
    assert main(["export", str(run), "--to", "tensorboard"]) == 1
    assert "metrics.jsonl cannot be read: it is a pipe or a device, and no file." in capsys.readouterr().err


HOLDING = """
import gc
from pathlib import Path

class Tracker:
    def begin(self, lines):
        said = [f"{len(lines)}, the last is {lines[-1]['step']}, {[line['step'] for line in lines[:2]]}"]
        for line in lines:
            held = sum(type(one) is dict and "of a test" in one for one in gc.get_objects())
            said.append(f"{line['step']} {line['of a test'][0]}, one of {held} that are held")
        Path(__file__).with_name("said").write_text("\\n".join(said))

    def step(self, line):
        pass

    def close(self):
        pass

make = lambda run, config, run_id: Tracker()
"""


def test_of_a_finished_run_no_line_is_held_longer_than_until_it_was_given(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    steps = [1, 2, 3, 2, 3, 4]  # it went on from step 1
    lines = [json.dumps({"step": step, "of a test": [place]}) for place, step in enumerate(steps)]
    (run / "metrics.jsonl").write_text(
        "\n".join([*lines[:3], '{"step": 7', "[1]", *lines[3:], '{"step": 5}'])
    )
    (tmp_path / "holding.py").write_text(HOLDING)
    assert main(["export", str(run), "--to", f"{tmp_path}/holding.py:make"]) == 0
    first, *said = (tmp_path / "said").read_text().splitlines()
    assert first == "4, the last is 4, [1, 2]"
    kept = ((1, 0), (2, 3), (3, 4), (4, 5))
    assert said == [f"{step} {place}, one of 1 that are held" for step, place in kept]


def test_an_export_of_a_file_that_is_changed_meanwhile_says_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    with StepLines(path) as lines:
        path.write_text('{"step":\n')
        with pytest.raises(RunError, match=r"metrics\.jsonl was changed while it was read\. Run the same"):
            list(lines)


def test_a_tracker_of_another_shape_is_told_in_words(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    put(run, 1)
    (tmp_path / "mine.py").write_text("def make(run):\n    pass\n")
    name = f"{tmp_path / 'mine.py'}:make"
    assert main(["export", str(run), "--to", name]) == 1
    assert f"{name} did not take the run: TypeError: make() takes 1 positional" in capsys.readouterr().err


def test_news_of_the_end_that_nobody_takes_are_one_sentence(tmp_path, monkeypatch):
    answers, told = Event(), []
    monkeypatch.setattr("controller.view.exports.outgoing.END_S", 0.05)
    monkeypatch.setattr(
        "controller.view.exports.outgoing.post", lambda url, name, news: answers.wait() and ""
    )
    looker = Looker(wanted_of(run_in(tmp_path), url="http://hook", on=["failed"]), tell=told.append)
    looker.finish()
    answers.set()
    assert len(told) == 1
    assert "nobody was told how it ended" in told[0]


KEPT = """
import json
from pathlib import Path


class Kept:
    def __init__(self, run):
        self.file = Path(run) / "kept.json"

    def begin(self, lines):
        self.steps = [line["step"] for line in lines]
        self.kind = type(lines._lines).__name__

    def step(self, line):
        self.steps.append(line["step"])

    def close(self):
        self.file.write_text(json.dumps([self.kind, self.steps]))


def make(run, config, run_id):
    return Kept(run)
"""


def test_a_long_run_that_is_there_already_is_not_held_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl_tail, "PIECE", 100)
    run = run_in(tmp_path)
    (tmp_path / "kept.py").write_text(KEPT)
    for step in range(1, 21):
        put(run, step)
    looker = Looker(wanted_of(run, trackers=[f"{tmp_path / 'kept.py'}:make"]), tell=pytest.fail)
    looker.finish()
    assert json.loads((run / "kept.json").read_text()) == ["StepLines", [*range(1, 21)]]
