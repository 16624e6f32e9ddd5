"""A version's life: shown when it is published, freed at the trainer when nobody needs it."""

from controller.core.decisions.versions.publication import Publication
from controller.core.decisions.versions.relay_tree import RelayTree
from controller.core.events import WorkerExited
from protocol.messages import Attach, PolicyPublished, Pull, Pulled, Ready, Retire
from tests.support.core_run import Run


def ready():
    """A run whose instance has version 0."""
    run = Run(run={"steps": 9})
    run.say("rollout-0", Pulled(0, "digest", 0.1))
    return run, run.core.state


def test_a_version_is_freed_when_a_newer_one_is_visible_and_nobody_pulls_it():
    run, state = ready()
    run.publish(1)
    assert [pull.policy_version for pull in run.sent(Pull)] == [1]
    assert run.sent(Retire) == [Retire(0)]
    run.publish(2)
    assert state.versions.visible == (1, 2)  # 1 is on its way to the instance
    run.say("rollout-0", Pulled(1, "digest1", 0.1))
    assert run.sent(Retire) == [Retire(1)]
    assert state.versions.visible == (2,)


def test_a_trainer_that_starts_cannot_show_a_version_that_this_run_has_not_trained():
    run, state = ready()
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", PolicyPublished(7, "v7", "of an older run", 1, 0.1))
    assert run.sent(Retire) == [Retire(7)]
    assert state.versions.visible == (0,)
    run.say("second", PolicyPublished(0, "elsewhere", "digest", 1, 0.1))
    run.say("second", Ready(0, 0, 0))
    assert not run.sent(Retire)
    assert state.versions.get(0).location == "elsewhere"


def test_a_freed_version_that_is_published_again_is_freed_again():
    run, state = ready()
    run.publish(1)
    run.publish(0)
    assert run.sent(Retire) == [Retire(0)]
    assert state.versions.visible == (1,)
    assert list(state.versions.freed) == [0, 0]


def test_the_time_of_a_publication_counts_once():
    run, state = ready()
    message = PolicyPublished(1, "v1", "digest1", 1, 5.0)
    state.registry.workers["trainer"].told.may_publish[1] = None
    run.say("trainer", message)
    counted = dict(state.accounts._seconds)
    Publication(state, RelayTree(state), run.core.evaluation).on_published(state.registry.trainer(), message)
    assert state.accounts._seconds == counted
    assert counted["publish"] >= 5.0
