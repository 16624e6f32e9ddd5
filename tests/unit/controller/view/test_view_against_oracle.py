"""Ledger, critical path and idle reasons of the pages are those of an oracle with accounts of its own."""

import random

import pytest

from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.past.lanes import shares
from controller.view.past.timeline import Timeline
from controller.view.pictures import ledger_of
from tests.support.recorded_run import record
from tests.support.shown_oracle import UNDER_WAY, Oracle

SEEDS, SAMPLE = 200, (0, 1, 2, 58)  # 58: many wait when one falls idle, for another reason than they had
LOOKS = 40  # at the pages of one run
MOST_WAITS, MOST_MEMBERS = 40, 8  # that a page tells
ROUTINGS = ("marginal_gain", "least_requests", "round_robin", "group_affine")


def config_of(seed):
    """Another size, rule, pace and misfortune for each seed."""
    dice = random.Random(f"shown/{seed}")
    bound = dice.randrange(5)
    staleness = {
        "max_staleness": bound,
        "partial_rollout": dice.random() < 0.8,
        "keep_kv": dice.random() < 0.3,
        "routing": dice.choice(ROUTINGS),
        "synchronization": dice.choice(["gain", "greedy", "status", "every_few"]),
        "migration": dice.choice(["benefit", "gap", "none"]),
        "in_flight_batches": dice.choice(["auto", "all", min(1.5, bound + 1)]),
        "filter": dice.choice(["none", "none", "zero_variance"]),
    }
    simulation: dict[str, object] = {
        "pull_s": dice.choice([0.02, 0.3, 2.0]),
        "train_token_s": 1e-4 * dice.randint(1, 20),
        "publish_s": dice.choice([0.0, 0.5]),
        "attach_s": 0.5,
        "score_s": dice.choice([0.0, 0.1, 1.0]),
    }
    if dice.random() < 0.6:
        simulation["faults"] = {
            "rollout_kills": 0.05, "reward_kills": 0.03, "stragglers": 0.05, "straggler_s": 5.0,
            "slow_links": 0.03, "late_share": 0.02, "late_s": 0.3,
        }  # fmt: skip
    sections = {
        "run": {"steps": dice.randint(3, 8)},
        "rollout": {
            "instances": dice.randint(1, 6),
            "group_size": dice.randint(2, 5),
            "max_response_tokens": 32 << dice.randrange(4),
            "max_running": dice.choice([4, 16]),
        },
        "reward": {"workers": dice.randint(1, 2)},
        "trainer": {"batch_groups": dice.randint(2, 8)},
        "staleness": staleness,
        "simulation": simulation,
        "controller": {"respawns": 500},
    }
    return Config.model_validate(sections)


def check_ledger(shown, oracle):
    """Columns, places and groups of the page Ledger."""
    for column, expected in zip(shown["columns"], oracle.columns(), strict=True):
        assert {key: column[key] for key in expected if key != "groups"} == {
            key: value for key, value in expected.items() if key != "groups"
        }
        assert {cell["id"] for cell in column["groups"]} == expected["groups"]
        for cell in column["groups"]:
            check_cell(cell, oracle)
    assert shown["others"] == []
    assert sorted(cell["id"] for cell in shown["training"]["groups"]) == sorted(oracle.training)
    states = [one.state for one in oracle.in_ledger().values()]
    assert (shown["occupied"], shown["reserved"]) == (
        states.count("occupied"),
        len(states) - states.count("occupied"),
    )
    assert (shown["fresh"], shown["train_version"]) == (len(oracle.fresh()), oracle.train_version)


def check_cell(cell, oracle):
    prompt = oracle.prompts[cell["id"]]
    assert (cell["state"], cell["version"], cell["size"]) == (prompt.state, prompt.version, oracle.size)
    assert cell["finished"] == prompt.count("finished")
    assert cell["queued"] == prompt.count("queued")
    assert cell["tokens"] == sum(one.tokens for one in prompt.responses)
    is_due = prompt.state in UNDER_WAY and oracle.due(cell["id"]) == oracle.train_version
    assert cell["is_blocker"] == is_due
    assert 0 <= cell["done"] <= 1


def check_waits(shown, oracle):
    """The critical path: who the next batch waits for, and where."""
    under_way = [group for group, one in oracle.in_ledger().items() if one.state in UNDER_WAY]
    due = {group for group in under_way if oracle.due(group) == oracle.train_version}
    missing = oracle.batch - (len(oracle.in_ledger()) - len(under_way))
    waits, left = shown["waits"], []
    assert len(waits) == min(len(under_way), max(len(due), missing, 0), MOST_WAITS)
    assert {wait["group"] for wait in waits if wait["is_due"]} == due
    for wait in waits:
        prompt = oracle.prompts[wait["group"]]
        assert wait["state"] == prompt.state
        scorers = [one.name for one in oracle.peers.values() if wait["group"] in one.scoring]
        assert wait["scorer"] == (scorers[0] if scorers else "")
        where = {
            member: (oracle.peers[one.peer].name if one.peer else "", one.tokens)
            for member, one in enumerate(prompt.responses)
            if one.state != "finished"
        }
        told = {one["member"]: (one["where"], one["tokens"]) for one in wait["members"]}
        assert told == where
        rest = sum(max(0, one["expected"] - one["tokens"]) for one in wait["members"])
        left.append((wait["group"] not in due, rest if where else -1, wait["group"]))
    assert left == sorted(left), "who is due now comes first, then who is nearest to its end"
    if missing > 0 and not oracle.training and "more groups" in shown["waiting_for"]:
        assert shown["waiting_for"] == f"{missing} more groups"


def check_lanes(timeline, oracle):
    """Each worker's seconds by what it did, and why it was idle."""
    for lane in timeline.lanes():
        told = shares([lane], 0.0, timeline.until_s)[lane.role]
        kept = {kind: seconds for kind, seconds in oracle.seconds[lane.name].items() if seconds > 1e-9}
        assert told == pytest.approx(kept, abs=1e-6), lane.name


def check_starts(timeline, closed_s, end_s):
    """What kept the next prompt from starting, until the run began to end."""
    told = timeline.starts.seconds(0.0, end_s)
    assert "ending" not in told
    told["open"] = told.pop("cap", 0.0) + told.pop("capacity", 0.0)
    kept = {rule: seconds for rule, seconds in closed_s.items() if seconds > 1e-9}
    assert {rule: seconds for rule, seconds in told.items() if seconds > 1e-9} == pytest.approx(
        kept, abs=1e-6
    )


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed in SAMPLE else pytest.mark.thorough) for seed in range(SEEDS)],
)
def test_pages_show_what_an_oracle_of_its_own_says(tmp_path, seed):
    config = config_of(seed)
    outcome = record(tmp_path / "run", config, seed=seed)
    assert outcome.is_success, outcome.reason
    oracle, waited, closed_s, end_s = Oracle(config), 0, None, 0.0
    with Recording(tmp_path / "run") as recording:
        core = recording.make_core()
        timeline = Timeline(core)
        looks = set(random.Random(seed).sample(range(recording.last), LOOKS))
        for turn in turns(recording, core):
            oracle.take(turn.recorded.now, turn.recorded.event, turn.commands)
            timeline.take(turn, core)
            if closed_s is None and core.state.ending is not None:
                closed_s, end_s = dict(oracle.closed_s), oracle.now
            if turn.recorded.number in looks:
                shown = ledger_of(core)
                check_ledger(shown, oracle)
                check_waits(shown, oracle)
                waited += len(shown["waits"])
    check_lanes(timeline, oracle)
    check_starts(timeline, closed_s, end_s)
    assert waited
    assert oracle.steps == core.state.steps == config.run.steps
