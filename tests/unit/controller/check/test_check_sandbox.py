"""`launch.py check` tries the sandbox of a reward that runs programs, and no other."""

import shutil

import pytest

from controller.check import reward, sandbox
from controller.check.data import Sample
from controller.check.problems import check
from controller.config.models import Config
from workers.reward.kinds.interface import Place

CODE = {"reward": {"rewards": [{"kind": "code"}]}, "data": {"path": "no_such.jsonl"}}


def remarks(tree, **reward):
    config = Config.model_validate({**tree, "reward": {**tree["reward"], **reward}})
    return list(sandbox.sandbox_remarks(config))


def test_a_machine_without_bubblewrap_is_told_what_installs_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    ((level, key, text),) = remarks(CODE)
    assert (level, key) == ("error", "reward.sandbox")
    assert "`bwrap` is not on the path" in text
    assert "apt-get install bubblewrap" in text
    assert "`reward.sandbox: limits` has to be written by hand" in text


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_program_has_run_where_it_works():
    assert [(level, "has run" in text) for level, _, text in remarks(CODE)] == [("note", True)]


def test_nothing_is_tried_without_need(monkeypatch):
    monkeypatch.setattr(sandbox, "ask", lambda *asked, **limits: pytest.fail("it was tried"))
    assert remarks(CODE, workers=0) == []
    assert remarks({"reward": {"function": "mine.py:score"}}) == []
    check(Config.model_validate(CODE))  # as a run does at its start: the reward worker tries it


def test_a_trial_that_hangs_is_an_error_in_words(monkeypatch):
    def unanswered(*asked, **limits):
        raise sandbox.Unanswered("took longer than 90 s")

    monkeypatch.setattr(sandbox, "ask", unanswered)
    assert remarks(CODE) == [
        ("error", "reward.sandbox", "the sandbox `auto` was tried, and the process took longer than 90 s.")
    ]


def test_a_reward_is_called_in_the_sandbox_that_the_configuration_asks_for(monkeypatch):
    asked = []

    def ask(module, question, *, limit_s):
        asked.append((module, question))
        return None, [0.0, 0.0]

    monkeypatch.setattr(reward, "ask", ask)
    config = Config.model_validate({**CODE, "reward": {**CODE["reward"], "sandbox": "limits"}})
    sample = Sample("data", "no_such.jsonl", {}, rows=[{"prompt": "?", "tests": ["assert True"]}])
    ((level, _, _),) = list(reward.reward_remarks(config, [sample], calls=True))
    ((module, question),) = asked
    assert (level, module) == ("note", "workers.reward.try_reward")
    assert Place(*question["place"]).sandbox == "limits"
