"""In runs of many sizes, bounds and paces the lanes' seconds are those that the core's accounts say."""

import pytest

from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.past.lanes import shares
from controller.view.past.timeline import Timeline
from tests.support.recorded_run import record
from tests.support.sampled_seeds import sampled_seeds

BEFORE = ("start-up", "gone")  # before there is a trainer there is no lane


def config_of(seed):
    """Another size, bound and pace for each seed."""
    return Config.model_validate(
        {
            "run": {"steps": 3 + seed % 3},
            "rollout": {
                "instances": 1 + seed % 4,
                "group_size": 2 + seed % 3,
                "max_response_tokens": 32 << seed % 3,
            },
            "trainer": {"batch_groups": 2 + seed % 5},
            "staleness": {"max_staleness": seed % 4},
            "simulation": {"pull_s": 0.02 * (seed % 7), "train_token_s": 1e-4 * (1 + seed % 11)},
        }
    )


@pytest.mark.parametrize("seed", sampled_seeds(4, 200))
def test_the_trainers_lane_has_the_seconds_of_the_accounts(tmp_path, seed):
    outcome = record(tmp_path / "run", config_of(seed), seed=seed)
    with Recording(tmp_path / "run") as recording:
        core = recording.make_core()
        timeline = Timeline(core)
        for turn in turns(recording, core):
            timeline.take(turn, core)
    of_roles = shares(timeline.lanes(), 0.0, timeline.until_s)
    found = {kind.removeprefix("waits: "): seconds for kind, seconds in of_roles["trainer"].items()}
    spent = core.state.accounts.spent_s
    for cause in (spent.keys() | found.keys()) - set(BEFORE):
        assert found.get(cause, 0.0) == pytest.approx(spent.get(cause, 0.0), abs=1e-6), cause
    assert sum(found.values()) > 0
    assert outcome.lines[-1]["step"] == core.state.steps
    for role, seconds in of_roles.items():
        lanes = [lane for lane in timeline.lanes() if lane.role == role]
        assert sum(seconds.values()) == pytest.approx(
            sum(timeline.until_s - lane.begins[0] for lane in lanes)
        )
