"""A recorded run goes on in virtual time, under its own strategy or another one."""

import pytest

from controller.cli.main import main
from controller.config.models import Config
from controller.durability.fingerprint import fingerprint
from controller.durability.recording import Recording
from controller.durability.replay import replay, turns
from controller.durability.store import Store
from controller.history.compare_strategies import other_config
from controller.simulation import Simulation, window
from controller.simulation.whatif import STEPS as SIMULATED
from controller.simulation.whatif import Comparison, Moment, exchange, go_on, measure, reach
from protocol.errors import ConfigError, RunError

STEPS = 40


def recorded(path, *, steps=STEPS, trainer=None, sections=None, simulation=None, **staleness):
    """A simulated run whose journal is written as a shell writes it; returns what came of it."""
    config = Config.model_validate(
        {
            **(sections or {}),
            "run": {"steps": steps},
            "rollout": {"instances": 3, "group_size": 4, "max_response_tokens": 400, "max_running": 16},
            "trainer": {"batch_groups": 4, **(trainer or {})},
            "staleness": {"max_staleness": 2, "strategy": "greedy", **staleness},
            "simulation": {
                "workload": {"prompt_tokens": 20},
                "pull_s": 0.2,
                "train_token_s": 2e-4,
                **(simulation or {}),
            },
        }
    )
    store = Store(path / "run.db")
    facts = {"config": config.model_dump_json(), "run_dir": "", "import_paths": "[]", "release": "{}"}
    with store.transaction():
        for name, value in facts.items():
            store.put_fact(name, value)
    simulation = Simulation(config, seed=1)
    step = simulation.core.step

    def journaled(now, event):
        commands = step(now, event)
        with store.transaction():
            store.put_fingerprints(store.append_events(now, [(event, False)]), fingerprint(commands))
        return commands

    simulation.decide = journaled
    outcome = simulation.run()
    store.close()
    return outcome


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded")
    recorded(path)
    return path


def compared(path, strategy, **options) -> Comparison:
    with Recording(path) as recording:
        return go_on(recording, other_config(recording.config(), strategy, []), **options)


def test_a_simulated_run_is_re_derived_like_a_real_one(run_dir):
    with Recording(run_dir) as recording:
        verdict = replay(recording)
    assert verdict.is_equal
    assert verdict.finished
    assert verdict.steps == STEPS


def test_the_runs_own_strategy_comes_to_the_same_as_itself_and_close_to_what_really_followed(run_dir):
    comparison = compared(run_dir, "greedy")
    assert comparison.own == comparison.other
    # bound + 2 are skipped, and one more for whole cycles of two or three; the last is not complete
    assert comparison.own.steps == SIMULATED - 4 - 1 - 1
    assert comparison.itself is not None
    tokens_per_s, staleness = comparison.itself
    assert comparison.own.tokens_per_s == pytest.approx(tokens_per_s, rel=0.1)
    assert comparison.own.staleness_mean == pytest.approx(staleness, abs=0.3)


@pytest.mark.parametrize("strategy", ["staleflow", "areal", "roll_flash", "verl_async"])
def test_other_strategies_take_over_with_what_is_under_way(run_dir, strategy):
    comparison = compared(run_dir, strategy)
    assert comparison.own.staleness_max <= 2
    assert comparison.other.steps == comparison.own.steps
    assert comparison.other != comparison.own
    if strategy in ("staleflow", "roll_flash"):
        assert comparison.other.violations == 0


def test_it_is_the_same_every_time_and_from_the_moment_asked_for(run_dir):
    early, again = compared(run_dir, "staleflow", at_s=5.0), compared(run_dir, "staleflow", at_s=5.0)
    assert early == again
    assert 5.0 <= early.at_s < compared(run_dir, "staleflow").at_s


def test_the_core_that_goes_on_knows_what_the_run_knew_and_keeps_its_invariants(run_dir):
    with Recording(run_dir) as recording:
        own = recording.config()
        moment = reach(recording, 10.0)
        core, groups = moment.core, dict(moment.core.state.groups)
        other = recording.make_core(other_config(own, "areal", []))
        exchange(core, other)
    assert core.state.groups == groups
    assert core.state.config is other.state.config
    assert type(core.state.ledger) is type(other.state.ledger)
    assert core.state.ledger.train_version == core.state.steps + bool(core.training.batch)
    assert core.state.strategies is other.state.strategies
    assert core.migrations.is_off
    core.state.ledger.check()


def test_what_cannot_take_over_is_refused_with_the_reason(run_dir):
    with pytest.raises(ConfigError, match="max_staleness 0, the run has 2"):
        compared(run_dir, "sync", at_s=10.0)
    with pytest.raises(RunError, match=r"From 1000000\.0 s on"):
        compared(run_dir, "staleflow", at_s=1e6)


def test_the_command_line_prints_both_and_what_really_followed(run_dir, capsys):
    assert main(["replay", str(run_dir), "--strategy", "staleflow", "--at", "10"]) == 0
    said = capsys.readouterr().out
    assert all(words in said for words in ("the run ", "own ", "other ", "other / own: "))
    assert main(["replay", str(run_dir), "--strategy", "sync", "--at", "10"]) == 2
    said = capsys.readouterr()
    assert said.out == "", "it is refused before anything is replayed"
    assert "Leave out --at" in said.err
    assert main(["replay", str(run_dir), "--at", "10"]) == 2


def test_figures_of_a_simulated_run_and_of_its_journal_agree(tmp_path):
    outcome = recorded(tmp_path, steps=20)
    figures = window(outcome.starts, max_staleness=2, skip=0)
    assert figures is not None
    comparison = compared(tmp_path, "greedy", at_s=0.0)
    assert comparison.itself is not None
    assert comparison.itself[0] == pytest.approx(figures.tokens_per_s, rel=0.1)


def test_another_strategy_takes_over_prompts_in_the_order_of_the_sampler_of_the_run(tmp_path):
    recorded(tmp_path, sampler="similar_length", sampler_batches=2)
    with Recording(tmp_path) as recording:
        other = other_config(recording.config(), None, ["staleness.sampler=in_order"])
        warned = []
        comparison = go_on(recording, other, warn=warned.append)
    assert (
        "The sampler stays the run's, similar_length: its prompts were read for that long before." in warned
    )
    assert comparison.at_s is not None
    assert comparison.other == comparison.own, "which prompts come again is not among what is simulated"


def taken_over_when(path, is_so):
    """What a run comes to from a moment at which its core is so."""
    with Recording(path) as recording:
        moment, times = Moment(recording.make_core()), []
        moment.begin()
        for turn in turns(recording, moment.core):
            moment.hear(turn)
            if moment.can_be_taken_over and is_so(moment.core):
                times.append(moment.now)
        at_s = times[len(times) // 2]
        assert is_so(reach(recording, at_s).core)
    return compared(path, "greedy", at_s=at_s).own


def test_a_run_is_taken_over_while_its_trainer_works_ahead_of_a_batch(tmp_path):
    limit_s = 20.0  # longer than any order takes, and a fraction of what is simulated
    recorded(tmp_path, trainer={"streaming": True}, sections={"limits": {"step_s": limit_s}})
    own = taken_over_when(tmp_path, lambda core: core.state.registry.trainer().told.ahead)
    assert own.steps > SIMULATED / 2


def test_a_run_is_taken_over_while_its_trainer_leaves_the_shared_device(tmp_path):
    recorded(tmp_path, sections={"placement": "colocated"}, simulation={"offload_s": 0.5})
    own = taken_over_when(tmp_path, lambda core: core.state.registry.trainer().device == "releasing")
    assert own.steps > SIMULATED / 2
    with Recording(tmp_path) as recording:
        assert "simulation.offload_s=0.5" in measure(recording).cluster(recording.path)


@pytest.mark.parametrize(
    "planned",
    [{"train_base_s": 2.0}, {"engine": {"speeds": (1.0, 0.5)}}, {"pulls_at_once": 1, "pull_s": 1.0}],
)
def test_what_the_measured_times_contain_is_not_added_from_the_configuration_again(tmp_path, planned):
    recorded(tmp_path, simulation=planned)
    comparison = compared(tmp_path, "greedy")
    assert comparison.own.tokens_per_s == pytest.approx(comparison.itself[0], rel=0.15)
