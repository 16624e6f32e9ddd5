"""The section `samples`: what of a run's responses people can read later.

Invariant: pure, and below the configuration, which includes it.
"""

from pydantic import Field

from protocol.settings import Section


class SampleSettings(Section):
    """Trained groups whose text is kept in run.db, for `launch.py samples`. The core chooses them: of every
    four the two with the widest spread of rewards, one at random, and the oldest."""

    groups: int = Field(default=4, ge=0, le=4096)
    """Groups of each step: prompt, all responses with the logprobs they were sampled with, rewards,
    advantages and versions. 0 keeps no text. Needs run.db (`run.durability` other than `off`)."""
    mb: int = Field(default=512, ge=1, le=1_048_576)
    """Room for them in run.db, in MiB; beyond it the samples of the oldest steps are deleted."""
