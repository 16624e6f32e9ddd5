"""Facts on a journal that `run.journal: compact` has shortened: earlier workers, and deleted events.

Invariant: for a whole journal there are no earlier workers.
"""

from controller.core.core import Core
from controller.durability.recording import Recording
from protocol.ids import PeerId


def names_in(core: Core) -> dict[PeerId, str]:
    """The name of each worker that this core knows, by peer."""
    return {peer: worker.name for peer, worker in core.state.registry.workers.items()}


def names_at_the_beginning(recording: Recording) -> dict[PeerId, str]:
    """Names, by peer, of workers that attached before the first kept event; {} if the journal is whole."""
    found = recording.snapshot(recording.pruned) if recording.pruned else None
    return {} if found is None else names_in(found.core)


def deleted_in_words(recording: Recording) -> str:
    """A sentence: how many events are missing from the beginning, and why."""
    return f"The first {recording.pruned} events were deleted (run.journal is compact)."
