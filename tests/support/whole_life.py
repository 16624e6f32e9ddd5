"""The life of a group, read at once."""

from controller.durability.recording import Recording
from controller.view.past.life import Life, LifeReader


def life_of(recording: Recording, group: int) -> Life:
    """From the row that was read to the last word about it. Raises: RunError if nothing names the group."""
    life = LifeReader(recording, group).read()
    assert life is not None, "it is never late"
    return life
