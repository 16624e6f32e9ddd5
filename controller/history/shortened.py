"""What a journal that `run.journal: compact` has shortened still tells of what it has deleted.

Invariant: of a journal that is whole, it is nothing.
"""

from controller.core.core import Core
from controller.durability.recording import Recording
from protocol.ids import PeerId


def names_in(core: Core) -> dict[PeerId, str]:
    """Of all workers that this core has, by peer: nobody attaches again because a journal begins later."""
    return {peer: worker.name for peer, worker in core.state.registry.workers.items()}


def names_at_the_beginning(recording: Recording) -> dict[PeerId, str]:
    """Of the workers that were there before the first event that is kept; {} if no snapshot says so."""
    found = recording.snapshot(recording.pruned) if recording.pruned else None
    return {} if found is None else names_in(found.core)


def deleted_in_words(recording: Recording) -> str:
    """That the history does not begin with the run."""
    return f"The first {recording.pruned} events were deleted (run.journal is compact)."
