"""The end of a run: notices that no batch can follow, saves and evaluates what is left, closes all workers.

Invariants: a failed run ends at once; any other run ends when its trainer has saved the newest version and
its evaluations are complete or impossible; every wait has a deadline.
"""

from typing import TYPE_CHECKING

from controller.core.commands import Finish
from controller.core.effects import recall, turns
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.core.state.run_state import RunState
from protocol.messages import Abort, Close, Role
from protocol.plain_text import sentence

if TYPE_CHECKING:
    from controller.core.core import Core


def notice_end_of_data(core: "Core") -> None:
    """End the run if no further batch can be completed."""
    state = core.state
    if is_out_of_data(core):
        count = len(state.ledger)
        groups = "1 group was" if count == 1 else f"{count} groups were"
        left = f"; {groups} left over, too few for a batch" if count else ""
        steps = "1 train step" if state.steps == 1 else f"{state.steps} train steps"
        state.end(f"The data ended after {steps}{left}.", is_success=state.steps > 0)


def is_out_of_data(core: "Core") -> bool:
    """Whether no further batch can be completed, since all prompts were read."""
    if not core.scoring.data_has_ended or core.training.is_busy or core.state.queue:
        return False
    if core.state.ledger.is_ready():  # that batch waits for the trainer, or for its time
        return False
    return core.state.is_all_occupied


def wind_up(core: "Core") -> None:
    """Let the trainer save and evaluations end, then close all workers; a failed run ends at once."""
    state, trainer = core.state, core.state.registry.trainer()
    state.accounts.is_ending = True
    core.pulls.end_rests()  # else their deadlines would be due at every event
    if trainer is None and not state.config.trainer.local and state.ending_is_success:
        _await_trainer(core)
    is_evaluating = state.ending_is_success and _go_on_evaluating(core)
    _call_back(core, but_evaluations=is_evaluating)
    if state.ending_is_success and (trainer is not None or core.training.is_unsaved):
        if trainer is not None and core.training.may_save and core.training.is_unsaved:
            core.training.save(trainer)
        if core.training.holds_up_the_end if trainer is not None else core.membership.expects("trainer"):
            return
        if core.training.is_unsaved:
            reason = "The trainer was lost before the last of them was saved; the same command goes on."
            said = filter(None, (state.ending, reason, core.membership.why_vacant("trainer")))
            state.ending, state.ending_is_success = " ".join(map(sentence, said)), False
    if is_evaluating and core.evaluation.holds_up_the_end:
        return
    state.finished = True
    for peer in state.registry.workers:
        state.send(peer, Close("The run is over.", is_fault=False))
    assert state.ending is not None
    state.emit(Finish(state.ending_is_success, state.ending))


def _await_trainer(core: "Core") -> None:
    """Wait up to `limits.end_s` for an external trainer that is gone, if it has to save or to publish."""
    steps = core.state.steps
    if not core.training.is_unsaved and (_is_at_hand(core) or not core.evaluation.holds_up_the_end):
        return
    what = "saved" if core.training.is_unsaved else "evaluated"
    assert core.state.ending is not None, "it is about to end"
    core.state.warn_once(
        f"end {core.state.epoch}",
        f"{sentence(core.state.ending)} Version {steps} is not {what}, and the trainer is gone: the run "
        f"waits {core.state.config.limits.end_s:g} s for another one (limits.end_s). A second Ctrl-C ends it "
        "now; the same command goes on with it in any case.",
    )
    core.state.is_trainer_given_up = not core.limits.await_end()


def _go_on_evaluating(core: "Core") -> bool:
    """Go on with evaluations; returns whether the end waits for them: while they are possible."""
    if not core.evaluation.holds_up_the_end:
        return False
    needed: list[Role] = ["rollout", "reward"]
    if core.state.config.agent.is_on:
        needed.append("agent")
    if not _is_at_hand(core):
        needed.append("trainer")
    missing = [role for role in needed if not core.membership.expects(role)]
    if missing:
        text = f"The last evaluation was left out: no {missing[0]} worker is left."
        core.state.warn_once("no last evaluation", text)
        core.evaluation.is_stopped = True  # nothing else waits for it either
        return False
    core.reports.give_up_lost_evaluation()
    core.evaluation_schedule.run()
    core.pulls.end_rests()
    core.pulls.serve_evaluation()
    core.evaluation_placement.run()
    core.scoring.take_completed()
    core.scoring.assign()
    _call_off_episodes(core.state)
    core.episode_starts.run()
    return True


def _is_at_hand(core: "Core") -> bool:
    """Whether the last weights can be evaluated without a trainer: on an instance, or an instance's host."""
    steps, versions = core.state.steps, core.state.versions
    instances = list(core.state.registry.instances())
    if any(instance.policy_version >= steps for instance in instances):
        return True
    last = None if versions.is_lost(steps) else versions.get(steps)
    return last is not None and any(instance.host == last.host for instance in instances)


def _call_off_episodes(state: RunState) -> None:
    """Take training episodes off their agent workers; a resumed run begins them again."""
    groups = [group for group in state.groups.values() if not group.is_evaluation]
    at_workers = [one for group in groups for one in group.episodes if one.peer is not None]
    turns.call_off(state, at_workers, "the run has made its train steps")
    state.unbegun |= dict.fromkeys((one.group, one.number) for one in at_workers)


def _call_back(core: "Core", *, but_evaluations: bool) -> None:
    """Abort everything in flight and queue it again, so that a resumed run can continue."""
    for instance in core.state.registry.instances():
        called = [id for id in instance.running if not but_evaluations or id.group < FIRST_EVALUATION_GROUP]
        if called:
            attempts = tuple(id.attempt(instance.running[id]) for id in called)
            core.state.send(instance.peer, Abort(attempts))
            recall.take_back(core.state, instance, called)
