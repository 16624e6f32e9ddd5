"""Why the door does not answer a request, in the shape in which OpenAI says it."""

from typing import Any

from workers.agent.conversations import TooManyConversations
from workers.agent.policy import BudgetExceeded

LIMIT_CODES = {"turns": "max_turns_exceeded"}
CONTEXT_EXCEEDED = "context_length_exceeded"
"""As OpenAI has it, and clients look for it."""
TOO_MANY_CONVERSATIONS = "too_many_conversations"


class DoorRefusal(Exception):
    """A request that is not answered; the text is for whoever sent it."""

    def __init__(self, status: int, text: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(text)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        told = {"message": str(self), "type": _type(self.status), "param": self.param, "code": self.code}
        return {"error": told}


def refusal_of(error: BudgetExceeded | ValueError) -> DoorRefusal:
    """How a client is told that its episode cannot ask that, or no more."""
    code = TOO_MANY_CONVERSATIONS if isinstance(error, TooManyConversations) else None
    if isinstance(error, BudgetExceeded):
        code = LIMIT_CODES.get(error.limit, CONTEXT_EXCEEDED)
    return DoorRefusal(400, str(error), param="messages", code=code)


def _type(status: int) -> str:
    return "authentication_error" if status == 401 else "invalid_request_error"
