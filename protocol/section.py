"""The base of every section of the configuration.

Invariant: frozen, strict, and refuses unknown keys and numbers that are not finite; a field's docstring is
its place in the manual.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections."""

    # JSON, in which a configuration is kept, knows no inf and no nan
    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )
