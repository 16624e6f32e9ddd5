"""Random values in every field of every message of a worker, against a run in virtual time."""

import random
import tempfile
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.config.models import Config
from controller.core.events import PeerFaulted
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol import messages
from protocol.errors import RemoteError
from protocol.messages import FROM_WORKER, MAY_SAY, Delta, Generated, Message, Role
from protocol.wire.codec import from_fields, to_fields
from tests.support.lying import generated
from tests.support.malformed import packet_of
from tests.support.random_rules import random_rules
from tests.support.scripted import Disk, Frames, Said, Scripted, ints
from tests.support.scripted_run import ScriptedRun, config_of, honest, trained_groups

LIVES = 300  # of liars in one run; then they are honest
LIES = 0.2  # share of its words
MORE = 2  # words at random, at most, each time that it has nothing to do
CROWD = 4  # liars at a time, where a run may have several
WORDS = 100  # of one life; then it only answers
TRIES = 5  # at a value that the codec lets pass
MAX_FRAME_TOKENS = 20_000
RESTARTS = 0.1  # share of runs whose controller ends in the middle, and whose history is replayed at the end
INTEGERS = (
    0, 1, 2, 3, 7, 8, 9, 10, 11, 63, 64, 65, 255, 1000, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    (1 << 40) + 1, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, -1, -(1 << 31),
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 2.0, 59.0, 61.0, 1e3, 1e9 - 1, 1e9, 1e30, -1e30, 1.1e30, 1e154,
    1e200, -1e200, 1.7e308, -1.7e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "x", "liar", "honest", "trainer", "loss", "step", "tcp://10.0.0.3:5000", "tcp://", "bogus", "/v1",
    "d1", "x" * 201, "y" * 70_000, "\x1b[2J", "a\nb", "\u202eab", "skipped_steps", "logprob_gap_p99",
)  # fmt: skip
LIMITS: dict[str, float] | None = (
    {
        "answer_s": 5.0, "token_s": 20.0, "pull_s": 10.0, "step_s": 20.0, "ready_s": 20.0, "end_s": 20.0,
        "absent_s": 120.0,
    }
    if "limits" in Config.model_fields
    else None
)  # fmt: skip
STUCK_EVENTS = 600  # without progress, after which a liar that says nothing wrong is closed
FAREWELLS = (messages.Beat, messages.Detach, messages.WorkerFailed)  # there is nothing to lie about
ENDINGS = ("", "stop", "length", "interrupt", "never")


class Values:
    """Draws values for one run."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.run: ScriptedRun | None = None

    def changed(self, message: Message) -> Message:
        """The message with one value replaced. Raises: RemoteError if the codec would refuse it."""
        is_progress = isinstance(message, Generated)
        tree = _listed((message.deltas, message.kept_words) if is_progress else to_fields(message))
        paths = [path for path in _paths(tree) if path]
        if paths:
            *way, last = self.rng.choice(paths)
            node = tree
            for step in way:
                node = node[step]
            node[last] = self._other(node[last])
        return from_fields(message.tag, _tupled(_columns(*tree) if is_progress else tree))

    def any(self, role: Role) -> tuple[Message, Frames]:
        """Something at random; nearly always what the role may say. Raises: RemoteError."""
        kinds = [kind for kind in MAY_SAY[role] if kind not in FAREWELLS]
        if self.rng.random() < 0.05:
            kinds = list(FROM_WORKER)
        message: Message = packet_of(self.rng.choice(kinds), self.rng).message
        for _ in range(self.rng.randrange(1, 6)):
            message = self.changed(message)
        return message, self.frames(message)

    def frames(self, message: Message) -> Frames:
        """Frames of the size that a message speaks of, as far as that is reasonable."""
        token = self.rng.choice((1, 1, 1, 1, 1, 0, 63, 64, -1))
        if isinstance(message, Generated):
            if sum(message.counts) > MAX_FRAME_TOKENS:
                return (b"", b"")
            return generated(*message.deltas, token=token)[1]
        if isinstance(message, messages.PromptsEncoded | messages.ExamplesEncoded):
            counts = [sum(counts) for _, *counts in message.encoded]
            return tuple(ints(*[token] * min(count, MAX_FRAME_TOKENS)) for count in counts)
        return ()

    def _other(self, value: Any) -> Any:
        rng = self.rng
        if rng.random() < 0.02:
            return rng.choice((None, True, b"", [], *INTEGERS, *FLOATS, *TEXTS))
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return rng.choice((value + 1e-9, value * 2, -value, *FLOATS))
        if isinstance(value, str):
            return rng.choice(ENDINGS if value in ENDINGS else TEXTS)
        listed = list(value) if isinstance(value, list) else []
        how = rng.randrange(4)
        if how == 0 or not listed:
            return []
        if how == 1:
            return listed[:-1]
        if how == 2:
            return [*listed, rng.choice(listed)]
        return listed[::-1]

    def _integer(self, value: int) -> int:
        rng = self.rng
        near = (value + 1, value - 1, value + 2, 2 * value)
        return rng.choice(near if rng.random() < 0.4 else self._known() if rng.random() < 0.6 else INTEGERS)

    def _known(self) -> list[int]:
        """Numbers that mean something in the run."""
        assert self.run is not None
        core = self.run.core
        state = core.state
        newest = state.versions.newest
        known = [state.steps, state.ledger.train_version, core.scoring.read_until, *state.groups]
        known += [newest.policy_version + n for n in (0, 1)] if newest else []
        known += [number for worker in state.registry.instances() for id in worker.running for number in id]
        known += [attempt for worker in state.registry.instances() for attempt in worker.running.values()]
        return known


def _columns(deltas: Any, kept_words: Any) -> list[Any]:
    """Fields of progress whose deltas were changed. Raises: RemoteError if they are no table any more."""
    try:
        columns = list(zip(*deltas, strict=True)) or [()] * len(Delta._fields)
    except (TypeError, ValueError) as error:
        raise RemoteError(f"Generated is malformed: {error}.") from None
    return [*map(list, columns), kept_words]


@dataclass
class Babbler(Scripted):
    """A worker that lies often."""

    inner: Scripted
    values: Values
    said: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(self.inner.name)
        self.role, self.host = self.inner.role, self.inner.host
        self.before = self.said.total()

    def begin(self) -> Said:
        """As it should, more or less."""
        return self._spoiled(self.inner.begin())

    def answer(self, message: Message, frames: Frames) -> Said:
        """As it should, more or less."""
        try:
            return self._spoiled(self.inner.answer(message, frames))
        except AssertionError:  # what it has said of itself is not what it is
            return [REFUSED]

    def work(self) -> Said:
        """As it should, more or less, and more."""
        rng = self.values.rng
        said = self._spoiled(self.inner.work())
        if self.said.total() - self.before < WORDS:
            for _ in range(rng.randrange(MORE + 1)):
                said += self._lie(lambda: self.values.any(self.role))
        return said

    def _spoiled(self, said: Said) -> Said:
        spoiled: Said = []
        for message, frames in said:
            if self.values.rng.random() >= LIES:
                spoiled.append((message, frames))
                continue
            lie = self._lie(lambda message=message, frames=frames: self._changed(message, frames))
            spoiled += lie or [(message, frames)]
        return spoiled

    def _changed(self, message: Message, frames: Frames) -> tuple[Message, Frames]:
        other = self.values.changed(message)
        return other, frames if self.values.rng.random() < 0.5 else self.values.frames(other)

    def _lie(self, make: Any) -> Said:
        """One message that the codec takes, counted; none if luck has it."""
        for _ in range(TRIES):
            with suppress(RemoteError):
                message, frames = make()
                self.said[type(message).__name__] += 1
                return [(message, frames)]
        return []


REFUSED: tuple[Message, Frames] = (messages.Detach("x" * 100_000), ())


def config_for(rng: random.Random, *, is_restarted: bool) -> Config:
    """A small run under rules drawn at random."""
    rules = random_rules(rng)
    trainer: dict[str, Any] = {"checkpoint_steps": rng.choice([0, 1, 2])}
    sections: dict[str, Any] = {"staleness": rules}
    if rng.random() < 0.1:
        trainer |= {"algorithm": "sft"}
        sections = {}
    elif rng.random() < 0.4:
        held_out = {"set": {"path": "-"}}
        sections["evaluation"] = {
            "every_steps": rng.choice([1, 2]), "samples": 2, "data": held_out,
            # without limits, what is to be evaluated exactly and went with a controller is waited for
            "exact": rng.random() < 0.5 and (LIMITS is not None or not is_restarted),
        }  # fmt: skip
    plain = not rules.get("spare_groups") and rules.get("strategy") is None
    trainer["streaming"] = plain and "staleness" in sections and rng.random() < 0.3
    if LIMITS is not None:
        sections["limits"] = LIMITS
    patience = {"replace_s": 30.0}
    return config_of(steps=rng.choice([3, 12, 24]), trainer=trainer, controller=patience, **sections)


@dataclass(slots=True)
class Verdict:
    """One run."""

    failure: str = ""  # "" if every promise was kept
    said: Counter[str] = field(default_factory=Counter)
    closed: int = 0
    events: int = 0
    is_success: bool = False


def one(seed: int) -> Verdict:
    """One run with liars of one role; what was wrong, if anything."""
    verdict = Verdict()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _play(seed, Path(folder) / "run.db", verdict)
    except Exception as error:  # whatever it is, it has failed
        places = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(places))
        verdict.failure = f"seed {seed}: {type(error).__name__} at {where}: {error}"
    return verdict


def _play(seed: int, path: Path, verdict: Verdict) -> None:
    rng = random.Random(f"values/{seed}")
    is_restarted = rng.random() < RESTARTS
    config, disk, values = config_for(rng, is_restarted=is_restarted), Disk(), Values(rng)
    roles: tuple[Role, ...] = ("reward", "trainer")
    roles = roles if config.trainer.is_supervised else ("rollout", *roles)
    role = rng.choice(roles)
    lives, make = [0], honest(config, disk)

    def make_one(name: str, its: Role) -> Scripted:
        worker = make(name, its)
        worker.host = "there" if its == "rollout" and name == "second" else "here"
        worker.is_strict = role == "trainer"  # others may say tokens of their own
        if its != role or name != "liar" or lives[0] >= LIVES:
            return worker
        lives[0] += 1
        return Babbler(worker, values, verdict.said)

    durability = "process" if is_restarted else "off"
    run = values.run = ScriptedRun(path, config, make_one, seed=seed, durability=durability)
    _staff(run, role, roles)
    if is_restarted:
        stop = rng.randrange(20, 300)
        _drive(run, role, until=stop)
        if run.end is None:
            run.close()
            verdict.events += run.events
            run = values.run = ScriptedRun(path, config, make_one, seed=seed)
            _staff(run, role, roles)
    _drive(run, role)
    _check(run, disk, is_restarted)
    verdict.events += run.events
    verdict.closed = run.core.state.accounts.counts["peers/faulted"]
    assert run.end is not None
    verdict.is_success = run.end.is_success


def _staff(run: ScriptedRun, role: Role, roles: tuple[Role, ...]) -> None:
    for its in roles:
        if its != role or its != "trainer":
            run.attach("honest", its)
    if "rollout" in roles:
        run.attach("second", "rollout")
    run.attach("liar", role)


def _drive(run: ScriptedRun, role: Role, *, until: float = float("inf")) -> None:
    """To the end, or so many events; a liar that was closed comes again."""
    progress, since, crowd = 0, run.events, 1 if role == "trainer" else CROWD

    def is_gone() -> bool:
        return run.events >= until or len(_liars(run)) < crowd

    def is_idle() -> bool:
        nonlocal progress, since
        accounts = run.core.state.accounts
        now = accounts.generated + len(accounts.reward_by_step) + run.core.scoring.read_until
        if now != progress:
            progress, since = now, run.events
        return LIMITS is None and run.events - since > STUCK_EVENTS

    while run.end is None and run.events < until:
        run.run(until=lambda: is_gone() or is_idle())
        if run.end is not None or run.events >= until:
            return
        if not is_gone():  # it holds the run up; nothing of what it has said is wrong
            run.inbox += [(PeerFaulted(peer, "It does nothing."), ()) for peer in _liars(run)]
            since = run.events
            run.run(until=lambda: not _liars(run))
        for _ in range(crowd - len(_liars(run))):
            run.attach("liar", role)


def _liars(run: ScriptedRun) -> list[str]:
    return [peer for peer, worker in run.workers.items() if worker.name == "liar"]


def _check(run: ScriptedRun, disk: Disk, is_replayed: bool) -> None:
    """Raises: AssertionError if the run broke a promise."""
    assert run.end is not None
    assert run.store.faults_skipped() == 0, f"the core has failed: {run.warnings}"
    state = run.core.state
    assert not state.ledger.is_strict or state.accounts.violations == 0, "the bound was broken"
    trained_groups(disk)
    assert [line["step"] for line in run.lines] == sorted({line["step"] for line in run.lines})  # type: ignore[type-var]
    if is_replayed:
        with run.store.transaction():
            run.stepper.write_rest()
        assert replay(Recording.live(run.store)).is_equal, "a replay differs"


def _paths(tree: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    found = [path]
    if isinstance(tree, list):
        for place, value in enumerate(tree[:50]):
            found += _paths(value, (*path, place))
    return found


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(each) for each in value) if isinstance(value, list) else value
