"""Even digits, whose parts stand still while a gate, a named pipe at the path `STALL_GATE`, is there.

What reads the pipe waits until the test opens it for writing: nobody looks again and again.
"""

import os
from contextlib import suppress

from tests.tasks import even_digits

GATE = "STALL_GATE"


def wait(part):
    """Stand still if this part is to, until the gate is opened."""
    gate = f"{os.environ[GATE]}.{part}"
    with suppress(FileNotFoundError), open(gate) as waiting:
        waiting.read()


def prompts(*, seed):
    """Endless, but for the gate."""
    for row in even_digits.prompts(seed=seed):
        wait("prompts")
        yield row


def reward(prompt, completion, answer):
    """Share of even digits, once the gate allows it."""
    wait("reward")
    return even_digits.reward(prompt, completion, answer)
