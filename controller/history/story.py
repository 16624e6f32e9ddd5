"""The story of one group, from the journal: every event and command that names the group, with its time.

Invariants: the core re-derives the whole story from recorded events; the events at which the replay begins
and ends do not change its lines."""

from collections.abc import Collection, Iterator
from typing import NamedTuple, get_args

import msgpack

from controller.core.commands import Command, DropPayload, Send
from controller.core.core import Core
from controller.core.events import Event, HeldOutRead, PromptsRead, Received
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.durability.replay import Replayed, shortened, turns
from controller.history.shortened import deleted_in_words, names_at_the_beginning
from protocol import messages
from protocol.errors import RunError
from protocol.ids import PeerId
from protocol.messages import Attach, Delta, Message, Role, Segment


class Beginning(NamedTuple):
    """A moment of the run before the group's prompt was read."""

    core: Core  # is stepped on from here
    number: int  # of the last event that it has seen
    names: dict[PeerId, str]  # of all workers that attached before
    until: int | None = None  # the last event that names the group, if that is known


def story(recording: Recording, group: int, *, begin: Beginning | None = None) -> Iterator[str]:
    """Lines of the story of a group, in order.

    `begin`: where the replay begins, by default the newest snapshot before the prompt was read; it ends after
    the last event that can name the group. Raises: RunError if no event or command names the group.
    """
    begin = begin or beginning(recording, group)
    is_cut = recording.pruned and begin.number == recording.pruned and _may_be_known(begin.core, group)
    for _, lines in told_turns(recording, group, begin):
        if lines and is_cut:
            yield f"{deleted_in_words(recording)} What came of this group before is not told."
            is_cut = False
        yield from lines


def told_turns(recording: Recording, group: int, begin: Beginning) -> Iterator[tuple[Replayed, list[str]]]:
    """Each replayed event of a story, and the lines that it adds, mostly none.

    A caller may pause between events. Raises: as `story`.
    """
    _refuse_unread(recording, group)
    core, after, names, last_word = begin
    until: int | None = None  # the last event of the story; None while the group is in the system
    before, is_told, was_there = "", False, False
    for turn in turns(recording, core, after):
        recorded = turn.recorded
        if isinstance(recorded.event, Received) and isinstance(recorded.event.message, Attach):
            names[recorded.event.peer] = recorded.event.message.name
        lines = [*_of_event(recorded.event, group, names)]
        for command in turn.commands:
            lines += _of_command(command, group, names)
        now = _standing(core, group)
        if now != before:
            lines.append(f"   = {now or 'gone from the system'}")
        before, is_told = now, is_told or bool(lines)
        yield turn, [f"{recorded.now:12.6f} s  #{recorded.number:<7} {line}" for line in lines]
        is_there = group in core.state.groups or (was_there and _is_kept(core, group))
        if was_there and not is_there and until is None:
            until = _last_word(recording, group, recorded.number) if last_word is None else last_word
        was_there |= is_there
        if until is not None and recorded.number >= until:
            break
    if not is_told:
        raise RunError(
            f"No event or command of {recording.path} names group {group}. Groups are numbered by prompts, "
            f"from 0; this history reaches version {core.state.steps}, at {core.state.now:.1f} s."
            f"{' ' + deleted_in_words(recording) if recording.pruned else ''}"
        )


def _refuse_unread(recording: Recording, group: int) -> None:
    """Refuse a group that was never read, without any replay. Raises: RunError."""
    is_held_out = group >= FIRST_EVALUATION_GROUP
    first = FIRST_EVALUATION_GROUP if is_held_out else 0
    newest = recording.newest(HeldOutRead if is_held_out else PromptsRead)
    if newest is None and recording.pruned:  # it may have been read before the first kept event
        return
    match newest.event if newest else None:
        case HeldOutRead(first_group, sources):
            end = first_group + len(sources)
        case PromptsRead(first_group, count):
            end = first_group + count
        case _:
            end = first
    if not first <= group < end:
        what = "Held-out prompts" if is_held_out else "Groups are numbered by prompts, which"
        known = f"have the numbers {first} to {end - 1}" if end > first else "were not read yet"
        raise RunError(f"No event or command of {recording.path} names group {group}. {what} {known}.")


def beginning(recording: Recording, group: int) -> Beginning:
    """The newest snapshot before the prompt was read, or the beginning of the history.

    Raises: RunError if the prompt was never read.
    """
    _refuse_unread(recording, group)
    core, after = _before(recording, group)
    return Beginning(core, after, _names_before(recording, after))


def _before(recording: Recording, group: int) -> tuple[Core, int]:
    """A core from before the prompt was read, and the last event that it has taken."""
    if group < FIRST_EVALUATION_GROUP:  # for held-out ones no snapshot says whether they were read
        for snapshot in recording.snapshots():
            if snapshot.core.scoring.read_until <= group:
                return snapshot.core, snapshot.number
    return recording.make_core(), recording.pruned


def _names_before(recording: Recording, after: int) -> dict[PeerId, str]:
    """Names, by peer, of all workers that attached before, also of lost ones, for late messages."""
    names = names_at_the_beginning(recording)
    if after == recording.pruned:
        return names
    for role in get_args(Role):
        for number, _, event, *_ in recording.events_with(msgpack.packb(role), after=recording.pruned):
            if number <= after and isinstance(event, Received) and isinstance(event.message, Attach):
                names[event.peer] = event.message.name
    return names


def _may_be_known(core: Core, group: int) -> bool:
    """Whether the group's prompt may have been read in this core."""
    return group >= FIRST_EVALUATION_GROUP or core.scoring.read_until > group


def _is_kept(core: Core, group: int) -> bool:
    """Whether the group is in a kept batch; for a held-out one, whether its evaluation goes on."""
    if group >= FIRST_EVALUATION_GROUP:  # at its end it is decided what is kept to be read
        found = core.evaluation.round
        return found is not None and found.first_group <= group
    return any(group in batch.groups for batch in core.state.batches.values())


def _last_word(recording: Recording, group: int, after: int) -> int:
    """The last event after `after` that names a group which the core has removed; `after` if none does."""
    last = after
    for recorded in recording.events_with(msgpack.packb(group), after=after):
        if any(_of_event(recorded.event, group, {})):
            last = recorded.number
    return last


def _standing(core: Core, number: int) -> str:
    """State, version and deadline of the group after a step, if it has one; "" if it is not in the system."""
    group = core.state.groups.get(number)
    if group is None:
        return ""
    if group.policy_version is None:
        return group.state
    if group.is_evaluation:
        return f"{group.state}: evaluates version {group.policy_version}"
    began, ledger = f"{group.state}: began at version {group.policy_version}", core.state.ledger
    if not ledger.is_strict:  # a batch may take it however late
        return began
    return f"{began}, due in version {group.policy_version + ledger.max_staleness}'s batch"


def named_groups(event: Event) -> Collection[int]:
    """Groups whose stories may have a line from this event."""
    if not isinstance(event, Received):
        return ()
    match event.message:
        case messages.Generated(groups=groups):
            return set(groups)
        case messages.PromptsEncoded(encoded, refused) | messages.ExamplesEncoded(encoded, refused):
            return [group for group, *_ in (*encoded, *refused)]
        case message:
            group = getattr(message, "group", None)
            return () if group is None else (group,)


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
    """Lines on what a message says about a group; none if it does not name the group."""
    name = type(message).__name__
    match message:
        case messages.Generated(deltas=deltas):
            yield from (_of_delta(delta) for delta in deltas if delta.group == group)
        case messages.PromptsEncoded(encoded, refused):
            yield from (f"encoded, {count} prompt tokens" for id, count in encoded if id == group)
            yield from (f"refused: {reason}" for id, reason in refused if id == group)
        case messages.ExamplesEncoded(encoded, refused):
            yield from (
                f"encoded, {prompt} prompt tokens and {response} of its response"
                for id, prompt, response in encoded
                if id == group
            )
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
                        f"{item.reward:g}, outcome {item.outcome:g}, {_of_segments(item.segments)}"
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
            yield from _of_episode(message, group)


def _of_episode(message: Message, group: int) -> Iterator[str]:
    """Lines on what a message says about the group's episodes."""
    match message:
        case messages.EndEpisodes(episodes, why):
            yield from (f"episode {number} is ended: {why}" for id, number, _ in episodes if id == group)
        case messages.Begin(id, number, trial, known=known) if id == group:
            yield f"Begin episode {number}, trial {trial}" + (f", {known} turns known" if known else "")
        case messages.Ask(id, number, given=given, keep=keep) if id == group:
            why = f" ({message.cause})" if message.cause else ""
            turn = f"episode {number} asks for turn {message.number + 1}{_of_fork(message)}{why}"
            yield f"{turn}: {given} tokens given after {keep}" + ("" if message.is_trained else ", untrained")
        case messages.Turn(id, number, ending=ending) if id == group:
            sampled = _of_segments(message.segments)
            turn = f"turn {message.number + 1} of episode {number}{_of_fork(message)}"
            yield f"{turn}: {sampled}, ends by {ending}"
        case messages.EpisodeEnded(id, number, reward=reward) if id == group:
            worth = f"reward {reward[0]:g}" if reward else "to be scored"
            noted = "".join(f"; {name} {value:g}" for name, value in message.metrics)
            yield f"episode {number} ended by {message.ending}, {worth}{noted}"
            for line in message.log.splitlines():
                yield f"episode {number} said: {shortened(line)}"
        case messages.EpisodeFailed(id, number, reason=reason) if id == group:
            yield f"episode {number} failed ({message.kind}): {shortened(reason)}"
        case _:
            pass


def _of_fork(message: messages.Ask | messages.Turn) -> str:
    """The trajectory of a turn, if it is not the first of its episode."""
    return "" if message.member == message.episode else f" in trajectory {message.group}.{message.member}"


def _of_delta(delta: Delta) -> str:
    ending = f", ends by {delta.ending}" if delta.ending else ""
    return (
        f"{delta.group}.{delta.member} attempt {delta.attempt}: {delta.count} tokens after {delta.start} by "
        f"version {delta.policy_version}{ending}"
    )


def _of_segments(segments: tuple[Segment, ...]) -> str:
    if not segments:
        return "from the start"
    by = ["given" if s.is_given else f"by version {s.policy_version}" for s in segments]
    return " + ".join(f"{s.count} tokens {who}" for s, who in zip(segments, by, strict=True))
