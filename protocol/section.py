"""The base of every section of the configuration.

Invariant: frozen, strict, and refuses unknown keys; a field's docstring is its place in the manual.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)
