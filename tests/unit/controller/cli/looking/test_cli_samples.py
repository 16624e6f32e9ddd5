"""`launch.py samples`: what is shown of what was kept."""

import io
import json

import pytest
from rich.console import Console

from controller.cli.looking import samples
from controller.cli.looking.samples import show
from controller.cli.main import main
from controller.config.models import Config
from controller.core.decisions.training import trainer_batches
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.store import Store
from controller.history.sample_text import SampleGroup, SampleReader, SampleResponse, SampleToken
from tests.support.kept_samples import add_samples, kept, response
from tests.support.recorded_run import record
from tests.support.scripted import TRAINED_LOGPROB, WEIGHT, Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest


def a_run(tmp_path, **samples):
    run = ScriptedRun(tmp_path / "run.db", config_of(samples=samples), honest(config_of(), Disk()))
    for name, role in (("r0", "rollout"), ("s", "reward"), ("t", "trainer")):
        run.attach(name, role)
    run.run()
    run.close()
    return str(tmp_path)


def test_a_supervised_run_is_not_told_to_set_a_key_that_would_change_nothing(tmp_path, capsys):
    record(tmp_path / "run", Config.model_validate({"run": {"steps": 2}}))
    store = Store(tmp_path / "run" / "run.db")
    with store.transaction():
        store.put_fact("config", Config.model_validate({"trainer": {"algorithm": "sft"}}).model_dump_json())
    store.close()
    assert main(["samples", str(tmp_path / "run")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "trains on given responses (trainer.algorithm: sft), and keeps no samples" in said
    assert "samples.groups" not in said


def test_the_newest_step_is_shown_and_jsonl_has_every_response(tmp_path, capsys):
    run = a_run(tmp_path, groups=4)
    assert main(["samples", run]) == 0
    shown = capsys.readouterr()
    assert "step 3, group " in shown.out
    assert "step 2, group " not in shown.out
    assert "tokenizer is not here" in shown.err
    assert main(["samples", run, "--all", "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["step"] for line in lines} == {1, 2, 3}
    assert len(lines) == 3 * 2 * 2
    assert all(len(line["tokens"]) == len(line["token_versions"]) for line in lines)


def looked_for(run, capsys, *words):
    assert main(["samples", run, "--jsonl", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_responses_are_looked_for_over_all_steps(tmp_path, capsys):
    run = a_run(tmp_path, groups=4)
    every = looked_for(run, capsys, "--all")
    lengths = [len(line["tokens"]) for line in looked_for(run, capsys, "--sort", "length")]
    assert lengths == sorted((len(line["tokens"]) for line in every), reverse=True)
    best = looked_for(run, capsys, "--sort", "reward", "--limit", "3")
    assert [line["reward"] for line in best] == sorted((line["reward"] for line in every), reverse=True)[:3]
    assert {line["step"] for line in looked_for(run, capsys, "--sort", "reward", "--up")} == {1, 2, 3}
    assert {line["step"] for line in looked_for(run, capsys, "--all", "--step", "2")} == {2}
    of_one = looked_for(run, capsys, "--sort", "reward", "--step", "2")
    assert {line["step"] for line in of_one} == {2}
    word = every[0]["response"][:6]
    assert every[0] in looked_for(run, capsys, "--find", word, "--limit", "99")
    assert main(["samples", run, "--sort", "drift"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("reward ") == 12
    assert "step 3, group " in shown


def test_more_than_a_page_is_looked_for_and_each_once(tmp_path, capsys):
    run = a_run(tmp_path, groups=0)
    add_samples(tmp_path, [kept(9, 1, [response(member, [member]) for member in range(100)])])
    found = looked_for(run, capsys, "--sort", "length", "--limit", "70")
    assert len({line["member"] for line in found}) == len(found) == 70
    assert len(looked_for(run, capsys, "--sort", "length", "--limit", "300")) == 100


def reads_and_prints(monkeypatch):
    """What a command does from now on: the groups that it reads, and "print"."""
    done, read = [], SampleReader.read
    monkeypatch.setattr(SampleReader, "read", lambda self, *key: done.append(key) or read(self, *key))
    monkeypatch.setattr(samples, "print", lambda *words, **how: done.append("print"), raising=False)
    return done


def test_a_group_is_printed_before_the_next_one_is_read(tmp_path, monkeypatch):
    run = a_run(tmp_path, groups=4)
    done = reads_and_prints(monkeypatch)
    assert main(["samples", run, "--all", "--jsonl"]) == 0
    assert [word == "print" for word in done] == [False, True, True] * 6


def test_a_search_reads_what_it_shows_and_each_group_once(tmp_path, monkeypatch):
    run = a_run(tmp_path, groups=0)
    for step in (8, 9):
        add_samples(tmp_path, [kept(step, step, [response(n, [step] * 99) for n in range(30)])])
    done = reads_and_prints(monkeypatch)
    assert main(["samples", run, "--jsonl", "--only", "equal", "--limit", "3"]) == 0
    assert done == [(9, 9), "print", "print", "print"]


def test_held_out_answers_have_no_advantage_and_are_not_of_the_newest_step(tmp_path, capsys):
    run = a_run(tmp_path, groups=1)
    add_samples(tmp_path, [kept(4, FIRST_EVALUATION_GROUP, [response(0, [1])])])  # of the last evaluation
    assert {line["step"] for line in looked_for(run, capsys)} == {3}
    assert {line["step"] for line in looked_for(run, capsys, "--all")} == {1, 2, 3, 4}
    for words in (("--only", "held_out"), ("--step", "4")):
        [line] = looked_for(run, capsys, *words)
        assert line["advantage"] is None
    assert main(["samples", run, "--only", "held_out"]) == 0
    shown = capsys.readouterr().out
    assert "held out, answered before step 4, group 1099511627776" in shown
    assert "reward 0, 1 tokens" in shown
    last = looked_for(run, capsys, "--sort", "advantage", "--limit", "99")[-1]
    assert last["group"] == FIRST_EVALUATION_GROUP


def test_held_out_answers_are_shown_where_nothing_else_is_kept(tmp_path, capsys):
    run = a_run(tmp_path, groups=0)
    add_samples(tmp_path, [kept(4, FIRST_EVALUATION_GROUP, [response(0, [1])])])
    assert [line["step"] for line in looked_for(run, capsys)] == [4]


def test_where_nothing_is_found_it_is_said(tmp_path, capsys):
    run = a_run(tmp_path, groups=4)
    assert main(["samples", run, "--reward-from", "99"]) == 2
    assert "holds no sample like that, of 12 responses that are kept" in capsys.readouterr().err
    assert main(["samples", run, "--only", "short"]) == 2


def test_what_is_not_kept_is_said(tmp_path, capsys):
    run = a_run(tmp_path, groups=0)
    assert main(["samples", run]) == 2
    assert "samples.groups was 0" in capsys.readouterr().err


def test_another_group_is_answered_with_those_that_are_there(tmp_path, capsys):
    run = a_run(tmp_path, groups=1)
    assert main(["samples", run, "--group", "999"]) == 2
    assert "no sample of that step or group. Steps 1 to 3 have some" in capsys.readouterr().err


def test_a_story_ends_with_the_text(tmp_path, capsys):
    run = a_run(tmp_path, groups=4)
    assert main(["story", run, "0", "--text"]) == 0
    assert "group 0 (kept for: " in capsys.readouterr().out


def test_no_word_of_a_model_drives_the_terminal():
    hostile = SampleToken(1, "\x1b[2J[red]x[/red]", 3, -0.1)
    sample = SampleGroup(
        4, 1, "oldest", {}, "\x1b]0;t\x07", (SampleResponse(0, 1.0, {}, 0.0, "stop", (hostile,)),)
    )
    out = io.StringIO()
    show([sample], most=2, by="version", console=Console(file=out, width=200))
    assert "\x1b" not in out.getvalue()
    assert "\\x1b[2J[red]x[/red]" in out.getvalue()


@pytest.mark.parametrize(
    ("by", "style"),
    [("version", "green"), ("logprob", "yellow"), ("drift", "cyan"), ("weight", "red")],
)
def test_a_token_is_coloured_by_what_was_asked(by, style):
    token = SampleToken(1, "word", 3, -2.0, trained_logprob=-0.5, weight=0.0)
    sample = SampleGroup(4, 1, "oldest", {}, "", (SampleResponse(0, 1.0, {}, 0.0, "stop", (token,)),))
    console = Console(file=io.StringIO(), width=200, record=True, force_terminal=True)
    show([sample], most=2, by=by, console=console)
    codes = {"red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m", "cyan": "\x1b[36m"}
    assert f"{codes[style]}word" in console.export_text(styles=True)


def test_drift_and_weight_are_what_the_trainer_told(tmp_path, capsys):
    run = a_run(tmp_path, groups=4)
    assert main(["samples", run, "--jsonl"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert set(line["trained_logprobs"]) == {TRAINED_LOGPROB}
    assert set(line["weights"]) == {WEIGHT}
    assert main(["samples", run, "--by", "drift"]) == 0
    assert "told nothing" not in capsys.readouterr().err


def test_where_the_trainer_told_nothing_it_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trainer_batches, "asked_groups", lambda *_, **__: ())
    run = a_run(tmp_path, groups=4)
    assert main(["samples", run, "--by", "weight"]) == 0
    assert "told nothing of these tokens" in capsys.readouterr().err
    assert main(["samples", run, "--jsonl"]) == 0
    assert set(json.loads(capsys.readouterr().out.splitlines()[0])["weights"]) == {None}
