"""What is used here of reasoning-gym, which is an extra."""

from collections.abc import Callable
from typing import Any

def get_score_answer_fn(name: str) -> Callable[..., Any]: ...
