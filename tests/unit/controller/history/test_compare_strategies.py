"""Another strategy is asked what the run's own was asked, and changes nothing."""

import pytest

from controller.cli.main import main
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.compare_strategies import KEPT, Shadow, other_config
from protocol.errors import ConfigError, RunError
from strategies.presets import PRESETS
from strategies.routing import by_least_requests
from tests.support.answered_run import AnsweredRun


def the_last(work, instances, settings):
    """A strategy of the user's."""
    return instances[-1].id if by_least_requests(work, instances, settings) is not None else None


def backwards(instances, settings):
    return [instance.id for instance in reversed(instances)]


def twice(instances, settings):
    return [instance.id for instance in instances] * 2


def greedy_for_lists(work, instances, settings):
    instances.clear()


def impatient(instances, settings):
    raise ZeroDivisionError("no")


def full_of_doubt(work, instances, settings):
    """Tells by its answer whether it was given its own knob."""
    return None if settings.mu == 0.75 else instances[0].id


def averse_to_interruption(work, instances, settings):
    """Tells by its answer whether it was given knobs that `staleness` calls otherwise."""
    return None if settings.keeps_kv and not settings.uses_prediction else instances[0].id


def of(agreements, name):
    """The decisions of routing, or of pulling, by their field of `Strategies`."""
    return agreements[name]


def shadowed(path, *changes):
    with Recording(path) as recording:
        core = recording.make_core()
        shadow = Shadow(recording, core, other_config(recording.config(), None, changes))
        return replay(recording, core), shadow.agreements


@pytest.fixture
def run_dir(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=4, routing="least_requests", synchronization="greedy").to_the_end()
    return tmp_path


def test_a_strategy_agrees_with_itself(run_dir):
    verdict, agreements = shadowed(run_dir)
    assert verdict.is_equal
    assert verdict.finished
    assert of(agreements, "route").decisions >= verdict.commands["Route"]
    assert of(agreements, "synchronize").decisions > 0
    assert sum(agreement.different for agreement in agreements.values()) == 0


def test_another_one_is_compared_at_each_decision_and_the_run_stays_as_it_was(run_dir):
    verdict, agreements = shadowed(run_dir, f"staleness.routing={__name__}:the_last")
    assert verdict.is_equal
    assert verdict.finished
    route = of(agreements, "route")
    assert 0 < route.different <= route.decisions
    assert len(route.first) == min(KEPT, route.different)
    first = route.first[0]
    assert (first.chosen, first.other) == (1, 2)
    assert first.about.startswith("group ")
    assert of(agreements, "synchronize").different == 0


def test_it_is_asked_with_its_own_knobs(run_dir):
    changes = (f"staleness.routing={__name__}:full_of_doubt", "staleness.mu=0.75")
    _, agreements = shadowed(run_dir, *changes)
    assert {difference.other for difference in of(agreements, "route").first} == {None}


def test_a_knob_that_strategies_know_by_another_name_is_its_own_too(run_dir):
    changes = (f"staleness.routing={__name__}:averse_to_interruption",)
    _, agreements = shadowed(run_dir, *changes, "staleness.keep_kv=true", "staleness.length_prediction=false")
    assert {difference.other for difference in of(agreements, "route").first} == {None}


def test_the_order_in_which_instances_pull_is_no_difference(run_dir):
    _, agreements = shadowed(run_dir, f"staleness.synchronization={__name__}:backwards")
    assert of(agreements, "synchronize").decisions > of(agreements, "synchronize").different == 0


def test_an_instance_that_is_named_twice_pulls_once_and_is_no_difference(run_dir):
    _, agreements = shadowed(run_dir, f"staleness.synchronization={__name__}:twice")
    assert of(agreements, "synchronize").decisions > of(agreements, "synchronize").different == 0


def test_what_the_other_one_does_to_its_lists_does_not_reach_the_run(run_dir):
    verdict, agreements = shadowed(run_dir, f"staleness.routing={__name__}:greedy_for_lists")
    assert verdict.is_equal
    assert verdict.finished
    assert {difference.other for difference in of(agreements, "route").first} == {None}


def test_admission_is_told_by_what_is_in_the_system(run_dir):
    _, agreements = shadowed(run_dir, "staleness.admission=one_batch")
    assert " groups in the system at version " in of(agreements, "admit").first[0].about


def test_one_that_fails_is_named_with_the_time(run_dir):
    words = (
        r"other strategy failed at [\d.]+ s\. staleness\.synchronization: impatient .*ZeroDivisionError: no\."
    )
    with pytest.raises(RunError, match=words) as raised:
        shadowed(run_dir, f"staleness.synchronization={__name__}:impatient")
    assert str(raised.value).endswith("Mend the function."), "no run has ended"


def test_only_the_strategy_may_differ(run_dir):
    with Recording(run_dir) as recording, pytest.raises(ConfigError, match=r"'trainer\.lr=1' changes more"):
        other_config(recording.config(), None, ["trainer.lr=1"])
    assert main(["replay", str(run_dir), "--set", "staleness.routnig=x"]) == 2


def test_a_preset_starts_from_its_own_defaults_at_the_runs_bound(run_dir):
    with Recording(run_dir) as recording:
        own = recording.config()
        other = other_config(own, "staleflow", ["staleness.mu=0.5"])
    assert other.staleness == type(own.staleness)(max_staleness=1, mu=0.5)
    assert other.trainer == own.trainer
    assert other_config(own, "areal", []).staleness == type(own.staleness)(strategy="areal", max_staleness=1)
    assert other_config(own, "sync", []).staleness.max_staleness == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_asked(run_dir, preset, capsys):
    assert main(["replay", str(run_dir), "--strategy", preset]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for name in ("routing", "admission", "pulls"))


def test_the_command_line_tells_the_verdict_and_the_comparison(run_dir, capsys):
    words = ["replay", str(run_dir), "--set", f"staleness.routing={__name__}:the_last"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "re-derived bit for bit" in said
    assert " different\n" in said
    assert ": to rollout-0; the other: to rollout-1" in said
