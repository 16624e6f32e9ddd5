"""Orders of an operator to a running run: pause, unpause, checkpoint, abort, evaluate, set.

Invariants: each order is a journalled message that names its author and reason, so that a replay obeys it at
the same event; each is answered once, with what follows or why it is refused; no order can break the run: a
pause ends no attempt and no lease, and a changed key counts from then on. A refused order changes nothing.
"""

import json
from itertools import islice
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.core.commands import Forget, Warn
from controller.core.effects import recall
from controller.core.state.groups import Group
from controller.core.state.run_state import Pause
from protocol.ids import PeerId
from protocol.messages import Close, Control

if TYPE_CHECKING:
    from controller.core.core import Core

LIVE_KEYS = (
    "samples.groups", "samples.mb", "samples.held_out", "trainer.checkpoint_steps",
    "evaluation.every_steps", "evaluation.share",
    "staleness.in_flight_batches", "limits", "controller.stuck_s", "controller.replace_s",
    "controller.respawns",
)  # fmt: skip
"""Keys, and whole sections, that only the core reads, and reads again for each decision."""
SHOWN_CHARS = 100  # of a refused value
SHOWN_GROUPS = 5  # groups that are named as ones that can be given up


class Refused(Exception):
    """The order cannot be obeyed; the text says why, and what to do."""


def obey(core: "Core", operator: PeerId, order: Control) -> None:
    """Do what an operator asks, and answer."""
    state = core.state
    try:
        done = _do(core, order)
    except Refused as refusal:
        state.send(operator, Close(str(refusal), True))
    else:
        why = f": {order.why}" if order.why else ""
        state.orders += 1
        state.emit(Warn(f"Asked by {order.who}{why}. {done}"))
        state.send(operator, Close(done, False))
    state.emit(Forget(operator, ""))


def _do(core: "Core", order: Control) -> str:
    """What was done, in a sentence. Raises: Refused."""
    if core.state.ending is not None:
        raise Refused(f"The run is ending: {core.state.ending}")
    match order.action:
        case "pause":
            return _pause(core, order)
        case "unpause":
            return _unpause(core)
        case "checkpoint":
            return _checkpoint(core)
        case "abort":
            return _abort(core, order.argument)
        case "evaluate":
            return _evaluate(core)
        case "set":
            return _set(core, order.argument)
        case _:
            assert_never(order.action)


def _pause(core: "Core", order: Control) -> str:
    if (paused := core.state.paused) is not None:
        raise Refused(f"{paused.in_words(core.state.now)} Nothing was changed.")
    core.state.paused = Pause(order.who, order.why, core.state.now)
    return (
        "The run is paused: what runs goes on to its end, no prompt starts, and no batch goes to the trainer."
    )


def _unpause(core: "Core") -> str:
    paused = core.state.paused
    if paused is None:
        raise Refused("The run is not paused. Nothing was changed.")
    core.state.paused = None
    core.training.forget_pause(paused.since_s)
    return f"The run goes on, after a pause of {core.state.now - paused.since_s:.0f} s."


def _checkpoint(core: "Core") -> str:
    steps, training = core.state.steps, core.training
    trainer = core.state.registry.trainer()
    if training.checkpoint_of is not None and training.checkpoint_of == steps:
        raise Refused(f"A checkpoint of version {steps} is being written already.")
    if steps == 0 or training.trainer_batches.saved_version >= steps:
        if not training.batch:
            raise Refused(
                f"There is nothing to save: version {steps} is the newest, and a checkpoint has it."
            )
        core.state.is_save_wanted = True
        return f"Version {steps + 1} is saved as soon as it is made."
    core.state.is_save_wanted = True
    if trainer is not None and training.may_save:
        training.save(trainer)
        return f"Version {steps} is being saved."
    return f"Version {steps}, or the next one, is saved as soon as the trainer has the step in hand done."


def _abort(core: "Core", argument: str) -> str:
    number = int(argument) if argument.isdecimal() and len(argument) < 19 else -1
    group = core.state.groups.get(number)
    if group is None or group.is_evaluation:
        shown = argument[:SHOWN_CHARS]
        raise Refused(f"There is no training group {shown!r}; expected the number of one{_such_as(core)}.")
    if not _may_abort(core, group):
        raise Refused(
            f"Group {number} is {group.state}, and cannot be given up. Expected one that is generating, "
            f"scoring, or occupied and not yet sent to the trainer{_such_as(core)}."
        )
    was = group.state
    recall.remove(core.state, group, "aborted")
    return f"Group {number}, which was {was}, is given up; a fresh prompt takes its place."


def _may_abort(core: "Core", group: Group) -> bool:
    if group.is_evaluation or group.state not in ("generating", "scoring", "occupied"):
        return False
    return group.id not in core.training.trainer_batches.ahead


def _such_as(core: "Core") -> str:
    """Names a few groups that can be given up now, for the end of a sentence."""
    found = (str(group.id) for group in core.state.groups.values() if _may_abort(core, group))
    some = ", ".join(islice(found, SHOWN_GROUPS))
    return f", such as {some}" if some else "; there is none that can be given up now"


def _evaluate(core: "Core") -> str:
    newest = core.state.versions.newest
    if not core.evaluation.is_on:
        raise Refused("The run began without held-out prompts: evaluation.every_steps is 0.")
    if newest is None:
        raise Refused("No version is published yet.")
    version = newest.policy_version
    going_on = core.evaluation.round
    if core.evaluation.asked == version or (going_on is not None and going_on.policy_version == version):
        raise Refused(f"Version {version} was evaluated already, or is now.")
    if core.evaluation.pending is not None:
        raise Refused(f"Version {core.evaluation.pending} waits to be evaluated already.")
    core.evaluation.pending = core.evaluation.asked = version
    return f"Version {version} is evaluated" + (" next." if going_on is not None else " now.")


def _set(core: "Core", argument: str) -> str:
    """Change one live key. `argument`: `key.path=` and its value as JSON."""
    key, _, text = argument.partition("=")
    section, _, field = key.partition(".")
    if not (key in LIVE_KEYS or section in LIVE_KEYS):
        raise Refused(f"{key!r} is no live key. Expected one of {', '.join(LIVE_KEYS)}.")
    tree: dict[str, dict[str, object]] = json.loads(core.state.config.model_dump_json())
    if field not in tree[section]:
        raise Refused(f"There is no key {key!r}. Expected one of {', '.join(tree[section])} in {section}.")
    before = tree[section][field]
    try:
        tree[section][field] = json.loads(text)
        config = Config.model_validate_json(json.dumps(tree))
    except (ValueError, RecursionError) as error:  # ValidationError is a ValueError
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is no JSON"
        raise Refused(f"{key} cannot be {text[:SHOWN_CHARS]}: {what}.") from None
    now = tree[section][field]
    if key == "staleness.in_flight_batches" and not (_is_number(before) and _is_number(now)):
        raise Refused(f"{key} is {before}; while a run goes on, only a number may take a number's place.")
    if key == "evaluation.every_steps" and not (before and now):
        raise Refused(f"{key} is {before}; that there are held-out prompts is settled when a run starts.")
    if problems := cross_field_problems(config):
        raise Refused(f"{key} cannot be {text}: {problems[0][1]}")
    core.state.config = config
    if section == "limits":
        core.limits.look_again()
    return f"{key} is {text} from now on; it was {json.dumps(before)}."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
