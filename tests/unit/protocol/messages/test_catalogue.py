"""What message classes say of themselves: tags that no release may change, and disagreements that do not
import."""

from dataclasses import dataclass
from typing import ClassVar, get_args

import pytest

from controller.core import commands, events
from protocol.messages import (
    FROM_WORKER,
    KINDS,
    MAY_HEAR,
    MAY_SAY,
    TO_WORKER,
    ControllerMessage,
    FromAgent,
    FromReward,
    FromRollout,
    FromTrainer,
    Party,
    ToAgent,
    ToReward,
    ToRollout,
    ToTrainer,
    WorkerMessage,
    by_tag,
)
from protocol.messages.catalogue import check

SAYS = {"rollout": FromRollout, "reward": FromReward, "trainer": FromTrainer, "agent": FromAgent}
HEARS = {"rollout": ToRollout, "reward": ToReward, "trainer": ToTrainer, "agent": ToAgent}
MESSAGES = """
Attach Beat Ready Detach WorkerFailed PromptsEncoded Generated GenerationFailed InstanceStatus Pulled
PullFailed GroupScored ScoreFailed TrainStepFinished PolicyPublished CheckpointSaved ExamplesEncoded Serving
FetchModel DrainWorker Holding TrainedAhead Control
"""  # tags from 1 on
ORDERS = """
Welcome Encode Route Interrupt Abort Pull Score Train SaveCheckpoint Retire Close Reattach Serve ModelFiles
Drain Keep TrainAhead
"""  # tags from 32 on
EVENTS = "Started Received PeerFaulted WorkerExited PromptsRead StopRequested Tick Restarted HeldOutRead"
COMMANDS = """
Send Spawn ReadPrompts DropPayload Forget ReportStep Warn Progress Finish ReadHeldOut ReportEvaluation
KeepSamples
"""


@pytest.mark.parametrize(
    ("first", "names", "kinds"),
    [
        (1, MESSAGES, KINDS),
        (32, ORDERS, KINDS),
        (1, EVENTS, by_tag(get_args(events.Event))),
        (1, COMMANDS, by_tag(get_args(commands.Command))),
    ],
    ids=["messages of workers", "messages of the controller", "events", "commands"],
)
def test_no_tag_changes(first, names, kinds):
    pinned = dict(enumerate(names.split(), first))
    found = {tag: kinds[tag].__name__ for tag in pinned if tag in kinds}
    assert found == pinned, "a tag is on disks and wires of other releases: a new message takes a new tag"


@pytest.mark.parametrize(
    ("module", "union"), [(events, events.Event), (commands, commands.Command)], ids=["Event", "Command"]
)
def test_no_event_and_no_command_is_forgotten(module, union):
    tagged = {kind for kind in vars(module).values() if isinstance(kind, type) and "tag" in vars(kind)}
    defined = {kind for kind in vars(module).values() if getattr(kind, "__module__", "") == module.__name__}
    assert tagged == defined == set(get_args(union)), "name it in the union at the end of its file"


def test_each_direction_has_all_of_its_classes():
    assert {*FROM_WORKER, *TO_WORKER} == set(KINDS.values())
    assert {kind for kind in FROM_WORKER if "core" in kind.heard_by} >= {
        k for ks in MAY_SAY.values() for k in ks
    }
    assert {kind for kinds in MAY_HEAR.values() for kind in kinds} == set(TO_WORKER)


@dataclass(frozen=True, slots=True)
class Dummy(WorkerMessage):
    """Well formed, but no type lists it."""

    tag: ClassVar[int] = 255
    said_by: ClassVar[tuple[Party, ...]] = ("trainer",)


class Unheard(ControllerMessage):
    """Nobody hears it."""

    tag: ClassVar[int] = 254


class HalfKept(Dummy):
    """Says what its frames are, and not where they are kept."""

    said_by: ClassVar[tuple[Party, ...]] = ("stranger",)

    def incoming_frames(self):
        return []


class Untagged(WorkerMessage):
    """Has no tag of its own."""


class Twin(Dummy):
    """Has the tag of another one."""

    tag: ClassVar[int] = 255


def test_a_message_that_nobody_may_say_or_hear_or_keep_does_not_import():
    check(KINDS.values(), SAYS, HEARS)
    with pytest.raises(TypeError, match="'trainer' may say it, and the type FromTrainer does not list it"):
        check([Dummy], SAYS, HEARS)
    listed = SAYS | {"trainer": FromTrainer | Dummy}
    check([Dummy], listed, HEARS)
    with pytest.raises(TypeError, match="does not say that 'rollout' may say it, and the type FromRollout"):
        check([Dummy], listed | {"rollout": FromRollout | Dummy}, HEARS)
    with pytest.raises(TypeError, match="set `said_by` and `heard_by`"):
        check([Unheard], SAYS, HEARS)
    with pytest.raises(TypeError, match="both `incoming_frames` and `kept`"):
        check([HalfKept], SAYS, HEARS)


def test_a_class_without_a_tag_of_its_own_does_not_import():
    with pytest.raises(TypeError, match="Untagged has no tag"):
        by_tag([Dummy, Untagged])
    with pytest.raises(TypeError, match="Twin and Dummy both have tag 255"):
        by_tag([Dummy, Twin])
