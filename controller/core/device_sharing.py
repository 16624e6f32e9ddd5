"""Hands the device of a colocated run (`placement: colocated`) to rollout or to the trainer.

Invariants: a version that is due for an evaluation is evaluated before the trainer gets the device again; a
trainer that was given the device in order to save is asked to save.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.core.core import Core


def share_device(core: "Core") -> None:
    """Hand the device over if it is free and the other side's turn; do nothing if each has its own."""
    if core.state.device == "own":
        return
    if core.state.ending is None:
        core.evaluation_schedule.run()
    training = core.training
    core.shared_device.run(is_unfinished=training.is_unfinished, has_next=training.has_next)
    trainer = core.state.registry.trainer()
    if trainer is not None and core.state.device == "trainer" and core.state.ending is None:
        training.save_if_due(trainer)  # with nothing to train, it was given the device for that
