"""Refusals of the door, in OpenAI's error format."""

from typing import Any

from workers.agent.conversations import TooManyConversations
from workers.agent.policy import BudgetExceeded

LIMIT_CODES = {"turns": "max_turns_exceeded"}
CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code, which clients look for."""
TOO_MANY_CONVERSATIONS = "too_many_conversations"


class DoorRefusal(Exception):
    """A refused request; the text is for its sender."""

    def __init__(self, status: int, text: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(text)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error in the format that OpenAI's clients read."""
        told = {"message": str(self), "type": _type(self.status), "param": self.param, "code": self.code}
        return {"error": told}


def refusal_of(error: BudgetExceeded | ValueError, param: str) -> DoorRefusal:
    """The refusal for an episode's limit or an invalid request. `param`: the field of its conversation."""
    code = TOO_MANY_CONVERSATIONS if isinstance(error, TooManyConversations) else None
    if isinstance(error, BudgetExceeded):
        code = LIMIT_CODES.get(error.limit, CONTEXT_EXCEEDED)
    return DoorRefusal(400, str(error), param=param, code=code)


def _type(status: int) -> str:
    return "authentication_error" if status == 401 else "invalid_request_error"
