"""What is used here of pyarrow, which is an extra and has no types of its own."""

from typing import Any

def __getattr__(name: str) -> Any: ...
