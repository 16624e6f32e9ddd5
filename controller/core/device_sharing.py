"""When one device goes to the other side in a run whose sides share it (`placement: colocated`).

Invariants: a version that is due for an evaluation is evaluated before the trainer has the device again; a
trainer that has the device for the sake of a checkpoint is asked for it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.core.core import Core


def share_device(core: "Core") -> None:
    """See whose turn it is, and hand the device over if it is free; nothing where each has its own."""
    if core.state.device == "own":
        return
    if core.state.ending is None:
        core.evaluation_schedule.run()
    training = core.training
    core.shared_device.run(is_unfinished=training.is_unfinished, has_next=training.has_next)
    trainer = core.state.registry.trainer()
    if trainer is not None and core.state.device == "trainer" and core.state.ending is None:
        training.save_if_due(trainer)  # it has the device for that, if it has nothing to train
