"""What distinguishes a real recording from a simulated one does not keep it from going on in virtual time."""

import sqlite3

import pytest

from controller.cli.main import main
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.history.compare_strategies import other_config
from controller.simulation import from_run, whatif
from controller.simulation.from_run import predict
from controller.simulation.whatif import go_on
from protocol.errors import ConfigError, RunError
from tests.support.recorded_run import record

SIMULATED = 14
FAR = {"rollout-1": "far", "rollout-2": "far"}


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    for module in (whatif, from_run):
        monkeypatch.setattr(module, "STEPS", SIMULATED)


def settings(**staleness):
    return Config.model_validate(
        {
            "run": {"steps": 16},
            "rollout": {"instances": 3, "group_size": 4, "max_response_tokens": 400, "max_running": 16},
            "trainer": {"batch_groups": 4},
            "staleness": {"max_staleness": 2, "strategy": "greedy", **staleness},
            "simulation": {"workload": {"prompt_tokens": 20}, "pull_s": 0.2, "train_token_s": 2e-4},
        }
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded")
    record(path, settings(), snapshot_every=1500)
    return path


@pytest.mark.parametrize("hosts", [{}, FAR])
def test_a_run_on_hosts_with_names_goes_on_to_its_end(tmp_path, hosts):
    record(tmp_path, settings(), hosts=hosts)
    with Recording(tmp_path) as recording:
        comparison = go_on(recording, other_config(recording.config(), "staleflow", []))
    assert comparison.own.steps == comparison.other.steps == SIMULATED - 5
    assert comparison.other.violations == 0


@pytest.mark.parametrize("bound", [1, 2])
def test_a_run_that_was_moved_with_a_strategy_of_its_own_goes_on(tmp_path, bound):
    """The absolute path of the strategy leads into the folder that was renamed."""
    then = tmp_path / "then"
    then.mkdir()
    (then / "mine.py").write_text("from strategies.filtering import keep_all as keep\n")
    record(then / "run", settings(filter=f"{then}/mine.py:keep"))
    with sqlite3.connect(then / "run" / "run.db") as db:
        db.execute("UPDATE facts SET value = ? WHERE name = 'run_dir'", (str(then / "run"),))
    there = then.rename(tmp_path / "there")
    with Recording(there / "run") as recording:
        other = other_config(recording.config(), None, [f"staleness.max_staleness={bound}"])
        comparison = go_on(recording, other)
        predicted = predict(recording, [f"staleness.max_staleness={bound}"])
    assert comparison.other.steps > 0
    assert predicted.changed is not None


def test_another_bound_is_compared_from_the_beginning_on_as_many_workers(run_dir, capsys):
    assert main(["replay", str(run_dir), "--set", "staleness.max_staleness=0"]) == 0
    said = capsys.readouterr().out
    assert "Simulated from version 0, as another bound cannot take over in the middle" in said
    with Recording(run_dir) as recording:
        other = other_config(recording.config(), None, ["staleness.max_staleness=0"])
        comparison = go_on(recording, other)
    assert comparison.at_s is None
    assert comparison.itself is not None
    assert comparison.own.tokens_per_s == pytest.approx(comparison.itself[0], rel=0.15)
    assert comparison.other.staleness_max == 0
    assert comparison.other.tokens_per_s < comparison.own.tokens_per_s


def test_what_no_run_can_be_compared_with_is_refused_before_anything_is_read(run_dir, monkeypatch):
    monkeypatch.setattr(Recording, "events", lambda *_: pytest.fail("the history was read"))
    assert main(["replay", str(run_dir), "--strategy", "sync", "--at", "5"]) == 2
    assert main(["replay", str(run_dir), "--set", "trainer.lr=1"]) == 2
    supervised = Config.model_validate({"trainer": {"algorithm": "sft"}})
    with pytest.raises(ConfigError, match="its strategy decides nothing"):
        whatif.refuse(supervised, supervised, at_s=None)


def test_a_simulation_that_stands_still_ends_with_what_it_waits_for(run_dir, monkeypatch):
    monkeypatch.setattr(whatif, "PATIENCE", 0)
    monkeypatch.setattr(whatif, "LEAST_PATIENCE_S", 0.01)
    with Recording(run_dir) as recording, pytest.raises(RunError, match=r"No batch went .* waits for"):
        go_on(recording, other_config(recording.config(), "areal", []))


def test_progress_and_decisions_are_told_in_words_and_sort_keys_not_at_all(run_dir, monkeypatch, capsys):
    monkeypatch.setattr("controller.cli.looking.history.TELL_S", 0.0)
    assert main(["replay", str(run_dir), "--strategy", "areal"]) == 0
    said, told = capsys.readouterr()
    assert "event 0 of " in told
    assert f"simulating own: step {SIMULATED} of {SIMULATED}" in told
    assert f"simulating other: step {SIMULATED} of {SIMULATED}" in told
    assert "View(" not in said
    assert "_order" not in said
    assert ": to rollout-" in said
    assert "admission: " in said


def test_a_run_of_a_core_that_decided_otherwise_is_not_simulated_on(tmp_path, run_dir, capsys):
    copied = tmp_path / "run.db"
    copied.write_bytes((run_dir / "run.db").read_bytes())
    db = sqlite3.connect(copied, isolation_level=None)
    db.execute("UPDATE fingerprints SET digests = x'0102030405060708' WHERE first_seq = 40")
    db.close()
    assert main(["replay", str(copied), "--strategy", "areal"]) == 1
    said = capsys.readouterr().out
    assert "The first difference is at event 40" in said
    assert "not simulated on: this core does not decide as the one that made the run" in said


def test_a_run_bound_by_scoring_is_simulated_as_one(tmp_path):
    slow = settings().model_dump()
    slow["simulation"]["score_s"] = 0.8
    record(tmp_path, Config.model_validate(slow))
    with Recording(tmp_path) as recording:
        measured = whatif.measure(recording)
        comparison = go_on(recording, other_config(recording.config(), "areal", []), measured=measured)
    assert measured.score_s == pytest.approx([0.8] * len(measured.score_s), abs=0.01)
    assert comparison.own.trajectories_per_s == pytest.approx(4 / 0.8, rel=0.05)  # one group at a time
