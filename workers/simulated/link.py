"""What the link and the host of a real worker take, whatever its role: nothing of it is simulated."""

from typing import assert_never

from protocol import messages
from protocol.messages import ToAnyRole


def taken_by_link(message: ToAnyRole) -> None:
    """Take a message that is not for the role."""
    match message:
        case messages.Beat() | messages.Welcome() | messages.ModelFiles():
            pass
        case messages.Close() | messages.Reattach() | messages.Drain():
            pass
        case _:
            assert_never(message)
