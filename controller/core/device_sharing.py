"""When one device goes to the other side in a run whose sides share it (`placement: colocated`).

Invariant: a version that is due for an evaluation is evaluated before the trainer has the device again.
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
