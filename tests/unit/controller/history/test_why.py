"""What the page Why tells of an event: what strategies were asked, as they were asked it."""

import pytest

from controller.config.models import Config
from controller.view.shown_run import ShownRun
from tests.support.recorded_run import record

MINE = """
def pull(instances, settings):
    chosen = [one.id for one in instances]
    instances.clear()
    return chosen


def move(instances, running, settings):
    seen = [len(running[one.id]) for one in instances]
    instances.clear()
    return []
"""


def told(folder, data=None, agent=None, **staleness):
    """All decisions of a small run, by kind."""
    config = Config.model_validate(
        {
            "run": {"steps": 4},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 48},
            "trainer": {"batch_groups": 4},
            "data": data or {},
            "agent": agent or {},
            "staleness": {"max_staleness": 1, **staleness},
            "simulation": {"attach_s": 0.1, "train_token_s": 1e-4},
        }
    )
    record(folder, config)
    run, found = ShownRun(folder), {}
    for number in range(1, run.why({})["event"]["number"] + 1):
        for decision in run.why({"event": str(number)})["decisions"]:
            found.setdefault(decision["kind"], []).append(decision)
    return found


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


def test_a_strategy_of_the_users_is_shown_with_what_it_was_given_whatever_it_made_of_it(tmp_path, mine):
    found = told(tmp_path / "run", synchronization=mine("pull"), migration=mine("move"))
    first, moves = found["pulls"][0], found["migration"]
    assert not first["about"].startswith("0 ")
    assert "SyncView(id=" in first["rows"][0][1]
    assert any("InstanceView(id=" in one["rows"][0][1] for one in moves)
    assert any("RunningView(id=0, resident_tokens=" in one["rows"][1][1] for one in moves)


def test_the_order_of_a_window_and_the_shares_of_sources_are_told(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n' * 8)
    sources = [{"name": name, "path": str(tmp_path / f"{name}.jsonl")} for name in ("one", "two")]
    data = {"sources": sources, "schedule": "pass_rate"}
    found = told(tmp_path / "run", data, sampler="similar_length", sampler_batches=2)
    window, shares = found["sampler"][0], found["schedule"][0]
    assert window["about"] == "window 0: 8 prompts"
    assert window["answer"] == "groups 0, 1, 2, 3; then 4, 5, 6, 7"
    assert window["rule"].startswith("Batches of prompts of about one expected length")
    assert shares["about"] == "2 sources of prompts"
    assert shares["answer"] == "one 50%, two 50%"
    assert "one: weight 1, pass rate 0.50; two" in shares["rule"]


HALVES = """
def halves(view):
    return [[0.5 if turn == 0 else -0.5 for turn, _ in enumerate(one)] for one in view.rewards]
"""


def test_the_advantages_of_turns_are_told_with_the_rewards_that_they_are_made_of(tmp_path):
    (tmp_path / "credit.py").write_text(HALVES)
    made = {"function": "simulated", "turn_rewards": True, "concurrency": 32}
    (one, *_) = told(tmp_path / "returns", agent=made)["turn advantages"]
    rewards, advantages = (
        [float(turns.split(", ")[0]) for turns in words.removeprefix("rewards of turns ").split("; ")]
        for words in (one["about"], one["answer"])
    )
    assert len(rewards) == 2
    assert advantages[0] == -advantages[1]
    assert (advantages[0] > 0) == (rewards[0] > rewards[1]), "the first turns are compared"
    assert "trainer.baseline group_mean" in one["rule"]
    own = made | {"turn_advantages": f"{tmp_path / 'credit.py'}:halves"}
    (one, *_) = told(tmp_path / "own", agent=own)["turn advantages"]
    assert one["answer"].startswith("0.5")
    assert one["rule"] == ""
    assert one["rows"][0][1].startswith("TurnsView(rewards=((")


def test_no_built_in_strategy_is_called_one_of_the_users(tmp_path):
    """The page says so of a decision without a rule."""
    fixed = {"pacing": "fixed", "filter": "zero_variance"}
    for name, staleness in (("as_they_are", {}), ("fixed", fixed)):
        found = told(tmp_path / name, **staleness)
        assert found["pacing"]
        assert {kind for kind, all_of_it in found.items() for one in all_of_it if not one["rule"]} == set()
