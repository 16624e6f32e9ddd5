"""A real worker process that tells one lie: `python lying_worker.py LIE ADDRESS --role ROLE --name NAME ...`.

The lie takes the place of one honest word; everything else is the worker's own.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

from protocol import messages
from protocol.messages import Message
from workers.host import serve
from workers.link.link import Link

Frames = tuple[bytes, ...]
Said = list[tuple[Message, Frames]]
Spoil = Callable[[Message, Frames], Said]


def of(kind: type[Message], **fields: object) -> tuple[type[Message], Spoil]:
    """The first word of a kind, with other fields."""
    return kind, lambda message, frames: [(replace(message, **fields), frames)]  # type: ignore[type-var]


def after(kind: type[Message], more: Message) -> tuple[type[Message], Spoil]:
    """The first word of a kind, and one more."""
    return kind, lambda message, frames: [(message, frames), (more, ())]


def twice(kind: type[Message]) -> tuple[type[Message], Spoil]:
    """The first word of a kind, two times."""
    return kind, lambda message, frames: [(message, frames)] * 2


def _negative(message: Message, frames: Frames) -> Said:
    return [(message, (b"\xff" * len(frames[0]), *frames[1:]))]


def _future(message: Message, frames: Frames) -> Said:
    assert isinstance(message, messages.Generated)
    deltas = tuple(delta._replace(policy_version=10**6) for delta in message.deltas)
    return [(messages.Generated.of(deltas), frames)]


STEP, PUBLISHED = messages.TrainStepFinished, messages.PolicyPublished
LIES: dict[str, tuple[type[Message], Spoil]] = {
    "trainer: makes the last of all versions": of(STEP, policy_version=2**31 - 1),
    "trainer: makes a version twice": twice(STEP),
    "trainer: trains for years": of(STEP, train_s=1e8),
    "trainer: publishes the last of all versions": of(PUBLISHED, policy_version=2**31 - 1),
    "trainer: publishes twice": twice(PUBLISHED),
    "trainer: publishes a place that clears the screen": of(PUBLISHED, location="/v\x1b[2J"),
    "trainer: saves what nobody asked for": after(STEP, messages.CheckpointSaved(1, "/nowhere")),
    "trainer: begins at a version to come": of(messages.Ready, policy_version=999),
    "reward: gives too few rewards": of(messages.GroupScored, rewards=(1.0,)),
    "reward: gives rewards far apart": of(messages.GroupScored, rewards=(1e308, -1e308, 1e308, -1e308)),
    "reward: scores twice": twice(messages.GroupScored),
    "reward: scores another group": of(messages.GroupScored, group=10_000),
    "reward: encodes to negative tokens": (messages.PromptsEncoded, _negative),
    "reward: encodes twice": twice(messages.PromptsEncoded),
    "rollout: tells of a version from the future": (messages.Generated, _future),
    "rollout: tells of negative tokens": (messages.Generated, _negative),
    "rollout: pulled with another checksum": of(messages.Pulled, digest="another"),
    "rollout: pulled for years": of(messages.Pulled, pull_s=1e8),
}


def main() -> None:
    """Be that worker; ends the process."""
    kind, spoil = LIES[sys.argv[1]]
    send, has_lied = Link.send, False

    def lie(link: Link, message: Message, *frames: bytes) -> None:
        nonlocal has_lied
        if has_lied or not isinstance(message, kind):
            send(link, message, *frames)
            return
        has_lied = True
        for word, with_it in spoil(message, frames):
            send(link, word, *with_it)

    Link.send = lie  # type: ignore[method-assign]
    serve.main(sys.argv[2:])


if __name__ == "__main__":
    main()
