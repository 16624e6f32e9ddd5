"""The section `trainer.lora`.

Invariant: at its defaults there is no adapter.
"""

from pydantic import Field

from protocol.section import Section


class LoraSettings(Section):
    """Low-rank adapters that are trained, published and saved instead of the model's own weights."""

    rank: int = Field(default=0, ge=0, le=512)
    """Width of the adapters; 0 is none: the whole model is trained. 8 to 32 are usual for RL, which needs
    little room; memory and versions grow with it. Learning rates are about ten times those of the whole
    model."""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter counts alpha / rank times. Kept fixed when `rank` changes, so does the best learning
    rate, nearly."""
    target_modules: tuple[str, ...] = Field(default=(), strict=False)
    """Linear layers that get an adapter, by the ends of their names, e.g. `[q_proj, v_proj]`. Empty, which
    learns best: all but the output layer. Experts of a mixture are no linear layers and get none."""
