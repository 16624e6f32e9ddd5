"""The life of one group, told from the journal: every event and command that names it, with its time.

Invariant: what is told was re-derived by the core; nothing of it was written down for the story.
"""

from collections.abc import Iterator

from controller.commands import Command, DropPayload, Send
from controller.core import Core
from controller.events import Event, HeldOutRead, PromptsRead, Received
from controller.recording import Recording
from controller.replay import shortened, turns
from protocol import messages
from protocol.errors import RunError
from protocol.messages import Attach, Delta, Message, Segment


def story(recording: Recording, group: int) -> Iterator[str]:
    """Lines of the story of a group, in order. Raises: RunError if no event or command names it."""
    core = recording.make_core()
    names: dict[str, str] = {}
    before = told = ""
    for turn in turns(recording, core):
        recorded = turn.recorded
        if isinstance(recorded.event, Received) and isinstance(recorded.event.message, Attach):
            names[recorded.event.peer] = recorded.event.message.name
        lines = [*_of_event(recorded.event, group, names)]
        for command in turn.commands:
            lines += _of_command(command, group, names)
        now = _standing(core, group)
        if now != before:
            lines.append(f"   = {now or 'gone from the system'}")
        before = now
        for line in lines:
            told = line
            yield f"{recorded.now:12.6f} s  #{recorded.number:<7} {line}"
    if not told:
        raise RunError(
            f"No event or command of {recording.path} names group {group}. Groups are numbered by prompts, "
            f"from 0; this history reaches version {core.state.steps}, at {core.state.now:.1f} s."
        )


def _standing(core: Core, number: int) -> str:
    """Where the group stands after a step."""
    group = core.state.groups.get(number)
    if group is None:
        return ""
    if group.policy_version is None:
        return group.state
    if group.is_evaluation:
        return f"{group.state}: evaluates version {group.policy_version}"
    due = group.policy_version + core.state.config.staleness.max_staleness
    return f"{group.state}: began at version {group.policy_version}, due in version {due}'s batch"


def _of_event(event: Event, group: int, names: dict[str, str]) -> Iterator[str]:
    match event:
        case PromptsRead(first, count):
            if first <= group < first + count:
                yield "<- its row was read"
        case HeldOutRead(first, sources):
            if first <= group < first + len(sources):
                yield f"<- its row was read: held-out prompt {group - first}, of {sources[group - first]}"
        case Received(peer, message):
            for text in about(message, group):
                yield f"<- {names.get(peer, peer)}: {text}"
        case _:
            pass


def _of_command(command: Command, group: int, names: dict[str, str]) -> Iterator[str]:
    match command:
        case Send(peer, message):
            for text in about(message, group):
                yield f"-> {names.get(peer, peer)}: {text}"
        case DropPayload(groups):
            if group in groups:
                yield "-> its payload is dropped"
        case _:
            pass


def about(message: Message, group: int) -> Iterator[str]:
    """What a message says about a group; nothing if it does not name it."""
    name = type(message).__name__
    match message:
        case messages.Generated(deltas):
            yield from (_of_delta(delta) for delta in deltas if delta.group == group)
        case messages.PromptsEncoded(encoded, refused):
            yield from (f"encoded, {count} prompt tokens" for id, count in encoded if id == group)
            yield from (f"refused: {reason}" for id, reason in refused if id == group)
        case messages.Encode(groups):
            yield from [name] * (group in groups)
        case messages.Interrupt(attempts) | messages.Abort(attempts):
            yield from (
                f"{name} {id}.{member} attempt {attempt}" for id, member, attempt in attempts if id == group
            )
        case messages.Train(train_version, items):
            for item in items:
                if item.group == group:
                    yield (
                        f"Train {group}.{item.member} in the batch of version {train_version}: reward "
                        f"{item.reward:g}, advantage {item.advantage:g}, {_of_segments(item.segments)}"
                    )
        case messages.TrainAhead(train_version, items):
            yield from [f"Train ahead of the batch of version {train_version}"] * any(
                item.group == group for item in items
            )
        case messages.Route() if message.group == group:
            yield (
                f"Route {group}.{message.member} attempt {message.attempt}, at most {message.max_new_tokens} "
                f"tokens more, {_of_segments(message.segments)}"
            )
        case messages.GroupScored() if message.group == group:
            yield f"rewards {', '.join(f'{reward:g}' for reward in message.rewards)}"
        case messages.Score() if message.group == group:
            yield f"Score attempt {message.attempt}, {len(message.items)} responses"
        case messages.ScoreFailed() | messages.GenerationFailed() if message.group == group:
            yield shortened(repr(message))
        case _:
            pass


def _of_delta(delta: Delta) -> str:
    ending = f", ends by {delta.ending}" if delta.ending else ""
    return (
        f"{delta.group}.{delta.member} attempt {delta.attempt}: {delta.count} tokens after {delta.start} by "
        f"version {delta.policy_version}{ending}"
    )


def _of_segments(segments: tuple[Segment, ...]) -> str:
    if not segments:
        return "from the start"
    return " + ".join(f"{s.count} tokens by version {s.policy_version}" for s in segments)
