"""Workers by script: honest answers to every order, payload included, at once and without a model.

Invariants: a response, token by token, is a function of its group, member and place, so whoever is given one
can tell whether every token is as it was said; equal orders give equal answers.
"""

import struct
from dataclasses import dataclass, field

import numpy as np

from protocol import messages
from protocol.messages import Attach, Delta, Generated, Message, Role

VOCABULARY = 64
PROMPT_TOKENS = 3
Frames = tuple[bytes, ...]
Said = list[tuple[Message, Frames]]
Key = tuple[int, int, int]


def ints(*numbers: int) -> bytes:
    """A frame of token ids."""
    return np.asarray(numbers, dtype="<i4").tobytes()


def prompt_of(group: int) -> list[int]:
    """The tokens of a prompt."""
    return [(group + place) % VOCABULARY for place in range(PROMPT_TOKENS)]


def response_of(group: int, member: int, *, start: int = 0, count: int) -> list[int]:
    """Tokens of a response from a place on."""
    return [(7 * group + 3 * member + place) % VOCABULARY for place in range(start, start + count)]


def length_of(group: int, member: int, most: int) -> int:
    """Tokens of a whole response."""
    return 1 + (5 * group + 3 * member) % most


class Scripted:
    """One worker process. Say what it is told to `answer`; call `work` when nothing else happens."""

    role: Role

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = "here"
        self.is_strict = True  # every token that it is given has to be the right one, not only their number

    def attach(self) -> Attach:
        """Its first word."""
        return Attach(self.role, self.name, 1, self.host)

    def begin(self) -> Said:
        """What it says once it was welcomed."""
        return [(messages.Ready(0, 0, 0), ())]

    def answer(self, message: Message, frames: Frames) -> Said:
        """What it says to an order."""
        del message, frames
        return []

    def work(self) -> Said:
        """What it does by itself; nothing if it has nothing in hand."""
        return []

    def check(self, frame: bytes, expected: list[int]) -> None:
        """Raises: AssertionError if it was given other tokens than these."""
        assert len(frame) == 4 * len(expected), f"{len(frame)} bytes; expected {len(expected)} tokens"
        assert not self.is_strict or frame == ints(*expected), f"other tokens than {expected}"


@dataclass(slots=True)
class _Running:
    """A response that is being generated."""

    had: int  # tokens of earlier attempts
    left: int  # tokens that the order allows
    done: int = 0


class ScriptedRollout(Scripted):
    """Generates a few tokens of everything that runs each time that it works."""

    role: Role = "rollout"

    def __init__(self, name: str, *, most: int, pace: int = 4, capacity: int = 8) -> None:
        """`most`: rollout.max_response_tokens; `pace`: tokens of each response at a time."""
        super().__init__(name)
        self.most, self.pace, self.capacity = most, pace, capacity
        self.version = 0
        self.running: dict[Key, _Running] = {}
        self.reports = self.steps = 0

    def begin(self) -> Said:
        """Ready, at the version that its weights have."""
        return [(messages.Ready(self.version, self.capacity, 100_000), ())]

    def answer(self, message: Message, frames: Frames) -> Said:
        """Routes, pulls, and what ends a response early."""
        match message:
            case messages.Route(group, member, attempt, _, left, segments):
                had = sum(segment.count for segment in segments)
                assert not self.is_strict or frames[0] == ints(*prompt_of(group)), f"another prompt: {group}"
                self.check(frames[1], response_of(group, member, count=had))
                self.running[group, member, attempt] = _Running(had, left)
            case messages.Pull(policy_version, _, digest):
                self.version = policy_version
                return [(messages.Pulled(policy_version, digest, 0.0), ())]
            case messages.Interrupt(attempts):
                return self._report({key: "interrupt" for key in attempts if key in self.running})
            case messages.Abort(attempts):
                for key in attempts:
                    self.running.pop(key, None)
            case messages.Serve():
                return [(messages.Serving("tcp://10.0.0.1:5000"), ())]
            case _:
                pass
        return []

    def work(self) -> Said:
        """A few tokens more of everything, and a report of the load."""
        if not self.running:
            return []
        said = self._report(dict.fromkeys(self.running, ""), self.pace)
        self.reports, self.steps = self.reports + 1, self.steps + self.pace
        status = messages.InstanceStatus(
            self.reports, self.version, len(self.running), 0, 10, self.steps, self.steps, 0.01 * self.steps,
            3, 0.01, 10 * self.steps, 0, (),
        )  # fmt: skip
        return [*said, (status, ())]

    def _report(self, endings: dict[Key, str], count: int = 0) -> Said:
        deltas: list[Delta] = []
        tokens: list[int] = []
        for key, wanted in endings.items():
            one = self.running[key]
            group, member, attempt = key
            # another may have said more than this one would have
            total = min(max(length_of(group, member, self.most), one.had + one.done), one.had + one.left)
            new = min(count, total - one.had - one.done)
            is_whole = one.had + one.done + new == total
            ending = ("length" if total == self.most else "stop") if is_whole else wanted
            tokens += response_of(group, member, start=one.had + one.done, count=new)
            deltas.append(Delta(group, member, attempt, one.done, new, self.version, ending))  # type: ignore[arg-type]
            one.done += new
            if ending:
                del self.running[key]
        if not deltas:
            return []
        logprobs = np.full(len(tokens), -0.5, dtype="<f4").tobytes()
        return [(Generated.of(tuple(deltas)), (ints(*tokens), logprobs))]


class ScriptedReward(Scripted):
    """Encodes and scores; half of a group gets 1."""

    role: Role = "reward"

    def __init__(self, name: str, *, supervised: int = 0) -> None:
        """`supervised`: the longest response that the data has; 0: responses are generated."""
        super().__init__(name)
        self.supervised = supervised

    def answer(self, message: Message, frames: Frames) -> Said:
        """Encode and Score."""
        match message:
            case messages.Encode(groups) if self.supervised:
                return [self._examples(groups)]
            case messages.Encode(groups):
                encoded = tuple((group, PROMPT_TOKENS) for group in groups)
                payload = tuple(ints(*prompt_of(group)) for group in groups)
                return [(messages.PromptsEncoded(encoded, ()), payload)]
            case messages.Score(group, attempt, items):
                for item, frame in zip(items, frames[2:], strict=True):
                    count = sum(segment.count for segment in item.segments)
                    self.check(frame, response_of(group, item.member, count=count))
                rewards = tuple(float(item.member % 2) for item in items)
                return [(messages.GroupScored(group, attempt, rewards), ())]
            case _:
                return []

    def _examples(self, groups: tuple[int, ...]) -> tuple[Message, Frames]:
        lengths = {group: length_of(group, 0, self.supervised) for group in groups}
        encoded = tuple((group, PROMPT_TOKENS, lengths[group]) for group in groups)
        payload = (prompt_of(group) + response_of(group, 0, count=lengths[group]) for group in groups)
        return messages.ExamplesEncoded(encoded, ()), tuple(ints(*tokens) for tokens in payload)


@dataclass(slots=True)
class Disk:
    """What outlives a trainer."""

    checkpoint: int = 0
    batches: dict[int, list[int]] = field(default_factory=dict)  # train_version -> groups that were fed


TRAINED_LOGPROB, WEIGHT = -0.25, 1.5  # that the scripted trainer finds of every token


def corrections(count: int) -> Frames:
    """The frames of a report on so many sampled tokens."""
    return tuple(struct.pack("<f", number) * count for number in (TRAINED_LOGPROB, WEIGHT))


class ScriptedTrainer(Scripted):
    """Counts versions; begins at the newest checkpoint."""

    role: Role = "trainer"

    def __init__(self, name: str, disk: Disk, *, is_supervised: bool = False) -> None:
        super().__init__(name)
        self.disk, self.version, self.is_supervised = disk, disk.checkpoint, is_supervised
        self.ahead: tuple[messages.TrainItem, ...] = ()  # of the next batch

    def begin(self) -> Said:
        """Ready, and the version that it has."""
        ready: Said = [(messages.Ready(self.version, 0, 0), ())]
        return ready if self.is_supervised else [*ready, self._published()]

    def answer(self, message: Message, frames: Frames) -> Said:
        """Train and SaveCheckpoint."""
        match message:
            case messages.TrainAhead(train_version, items):
                assert train_version == self.version
                self._check(items, frames)
                self.ahead += items
                return [(messages.TrainedAhead(train_version), ())]
            case messages.Train(train_version, items, is_published, ahead, _, samples):
                assert train_version == self.version, f"batch {train_version} to a trainer at {self.version}"
                assert items[:ahead] == self.ahead, "other groups came ahead"
                self.ahead = ()
                self._check(items[ahead:], frames)
                groups = sorted({item.group for item in items})
                assert self.disk.batches.setdefault(train_version, groups) == groups, "another batch"
                self.version += 1
                read = [item for item in items if item.group in samples]
                places = tuple((item.group, item.member, item.sampled_tokens) for item in read)
                finished = messages.TrainStepFinished(self.version, 0.0, (("loss", 0.5),), places)
                found = corrections(sum(count for *_, count in places)) if places else ()
                return [(finished, found), *([] if is_published else [self._published()])]
            case messages.SaveCheckpoint(policy_version):
                assert policy_version == self.version
                self.disk.checkpoint = self.version
                return [(messages.CheckpointSaved(policy_version, f"/checkpoints/step_{policy_version}"), ())]
            case messages.Serve():
                return [(messages.Serving("tcp://10.0.0.2:5000"), ())]
            case _:
                return []

    def _published(self) -> tuple[Message, Frames]:
        return messages.PolicyPublished(self.version, f"/v{self.version}", f"d{self.version}", 1, 0.0), ()

    def _check(self, items: tuple[messages.TrainItem, ...], frames: Frames) -> None:
        prompts, tokens, logprobs = frames
        expected: list[int] = []
        for item in items:
            expected += response_of(item.group, item.member, count=item.response_tokens)
        self.check(tokens, expected)
        if self.is_strict:
            self.check(prompts, [token for item in items for token in prompt_of(item.group)])
        assert len(logprobs) == len(tokens)
