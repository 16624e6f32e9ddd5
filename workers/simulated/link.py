"""Messages that the link and the host of a real worker handle in any role: they are not simulated."""

from typing import assert_never

from protocol import messages
from protocol.messages import ToAnyRole


def taken_by_link(message: ToAnyRole) -> None:
    """Accept a message that is not for the role."""
    match message:
        case messages.Beat() | messages.Welcome() | messages.ModelFiles():
            pass
        case messages.Close() | messages.Reattach() | messages.Drain():
            pass
        case _:
            assert_never(message)
