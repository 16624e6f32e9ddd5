"""The agent worker: begins episodes, sends their questions to the controller and returns the answers.

Invariants: a begun episode is reported by exactly one message, unless the controller ends it; errors of the
user's code are reported as its own failure, never as this worker's; nothing is kept for replay: the
controller sends earlier answers again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, cast

from protocol.errors import ConfigError
from protocol.importing import cannot_import
from protocol.messages import Begin, EndEpisodes, EpisodeEnded, EpisodeFailed, Message, Ready, ToAgent, Turn
from protocol.messages.pieces import EpisodeEnding
from protocol.model_files import vocabulary_of
from protocol.plain_text import begin_and_end, begin_of
from protocol.settings import WorkerSettings
from workers.agent.child import NO_DOOR, AgentChild, Ended, FailureKind
from workers.agent.door.chat_request import run_fields
from workers.agent.door.desk import DoorQuestion
from workers.agent.door.refusal import refusal_of
from workers.agent.episode import Asked, EpisodeBudget, EpisodeKey, HostedEpisode, SlowRequest
from workers.agent.policy import BudgetExceeded
from workers.agent.pool import NO_TRAINED_TURN, AgentPool
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.long_texts import LongTexts, QuickRenderer
from workers.agent.rendering.probes import check_probes
from workers.agent.rendering.renderer import Renderer
from workers.link.link import Link

if TYPE_CHECKING:
    from workers.agent.door.door import Door

logger = logging.getLogger(__name__)
MAX_SUSPECTS = 1000


@dataclass(slots=True)
class _InHand:
    """A running episode."""

    number: int
    episode: HostedEpisode
    child: AgentChild | None = None  # None: not placed yet
    asked_at: dict[int, float] = field(default_factory=dict)  # by trajectory; of open requests
    awaited: list[tuple[int, int, float]] = field(default_factory=list)  # as `EpisodeEnded.awaited`
    slow: asyncio.Task[None] | None = None  # a request whose text takes long to encode
    behind: deque[Callable[[], None]] = field(default_factory=deque)  # actions that came meanwhile

    def in_order(self, act: Callable[[], None]) -> None:
        """Run `act` at once, or after the request whose text takes long."""
        if self.slow is None:
            act()
        else:
            self.behind.append(act)

    def heard(self, turn: Turn) -> None:
        """Note that the answer was passed on."""
        if (asked_at := self.asked_at.pop(turn.member, None)) is not None:
            self.awaited.append((turn.member, turn.number, 1000 * (time.monotonic() - asked_at)))


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of an episode to its policy."""

    number: Any  # comes back with the answer
    question: Mapping[str, Any]
    began: float  # of the monotonic clock
    refuse: Callable[[BudgetExceeded | ValueError], None]


class AgentHost:
    """Runs episodes in processes of the agent, behind a link."""

    _link: Link
    _tasks: asyncio.TaskGroup
    _long_texts: LongTexts

    def __init__(self, settings: WorkerSettings, model_directory: str) -> None:
        self._settings, self._model_directory = settings, model_directory
        self._limits = EpisodeBudget.of(settings, vocabulary_of(Path(model_directory)))
        self._renderer: Renderer | None = None
        self._numbers: dict[EpisodeKey, int] = {}
        self._in_hand: dict[int, _InHand] = {}
        self._begun = 0
        self._door: Door | None = None
        self._suspects: deque[tuple[int, int]] = deque(maxlen=MAX_SUSPECTS)
        self._is_draining = False
        self._cancellable: set[asyncio.Task[None]] = set()  # by a drain
        self._wake: Callable[[], None] = lambda: None  # wakes the loop that serves, once there is one

    def drain(self) -> None:
        """Return from `run` at once: its episodes begin again elsewhere, with their known turns."""
        self._is_draining = True
        for task in self._cancellable:
            task.cancel()
        self._wake()

    async def run(self, link: Link) -> None:
        """Serve until drained. Raises: LinkClosed, ConfigError if agent or tokenizer cannot be loaded."""
        self._link, self._wake = link, link.wake
        agent = self._settings.agent
        if not agent.is_on:
            raise ConfigError("`agent.function` is empty; expected `module:function` or `file.py:function`.")
        async with AsyncExitStack() as stack:
            doors = await stack.enter_async_context(AsyncExitStack())  # it closes after the pool
            if agent.has_door:
                self._door = await doors.enter_async_context(self._make_door())
            fields = run_fields(self._settings)
            pool = AgentPool(agent, self, self._settings.import_paths, request_kwargs=fields)
            self._pool = await stack.enter_async_context(pool)
            async with asyncio.TaskGroup() as self._tasks:
                self._create(pool.start(), "agents")
                make = partial(make_renderer, self._model_directory, agent)
                self._renderer = await asyncio.to_thread(make)
            if self._is_draining:
                return
            self._long_texts = LongTexts(make)
            stack.callback(self._long_texts.close)
            if pool.asks_at_door and self._door is None:
                self._door = await doors.enter_async_context(self._make_door())
            self._check_renderer()
            link.send(Ready(0, agent.concurrency, 0))
            logger.info("Ready: %d processes, %d episodes at once.", agent.processes, agent.concurrency)
            await self._serve(link)

    async def _serve(self, link: Link) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            while not self._is_draining:
                while (item := link.receive_nowait()) is not None:
                    self._handle(*item)
                await link.arrived.wait()

    def _create(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._cancellable.add(task)
        task.add_done_callback(self._cancellable.discard)
        if self._is_draining:
            task.cancel()
        return task

    def _handle(self, message: Message, frames: tuple[bytes, ...]) -> None:
        order = cast("ToAgent", message)  # the link lets nothing else pass
        match order:
            case Begin():
                if (begun := self._begin(order, *frames)) is not None:
                    self._create(self._place(begun), "begin an episode")
            case Turn():
                self._answer(order, frames)
            case EndEpisodes():
                for key in order.episodes:
                    self._end(key)
            case _:
                assert_never(order)

    def _make_door(self) -> "Door":
        """Raises: ConfigError if its packages are not installed."""
        try:
            from workers.agent.door.door import Door  # its packages are an extra
        except ImportError as error:
            raise ConfigError(
                f"`{self._settings.agent.door_key}`: {cannot_import(error)} Clients of episodes ask at a "
                "door, which needs them. Install them: pip install -e '.[web]'."
            ) from error
        return Door(self._settings, self.on_chat)

    def _check_renderer(self) -> None:
        """Raises: ConfigError if a door lacks a renderer, or cannot do what `agent.history` or `data` ask."""
        if self._renderer is None:
            if self._door is not None:
                raise ConfigError(
                    "Clients of the door speak in messages, and the tokenizer of `model.path` has no chat "
                    "template. Give it one, or set `agent.renderer: plain`."
                )
            return
        tried, kwargs = self._renderer, self._settings.template_kwargs
        try:
            tried = tried.with_template_kwargs(kwargs) if kwargs else tried
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for name, why in check_probes(tried, self._settings.agent.history).items():
            if why:
                logger.info("The chat template on %s: %s.", name, why)

    # -- what the controller says ---------------------------------------------------------------------

    def _begin(self, order: Begin, row: bytes, state: bytes = b"") -> _InHand | None:
        """Begin an episode; None if it cannot go on from this state."""
        key = (order.group, order.episode, order.trial)
        self._end(key)  # begun again: what this worker had of it is over
        try:
            renderer = self._renderer and QuickRenderer(self._renderer)
            episode = HostedEpisode(order, row, state, limits=self._limits, renderer=renderer)
        except ValueError as error:
            self._link.send(EpisodeFailed(*key, kind="environment", reason=str(error), row=_shown(row)))
            return None
        self._begun += 1
        in_hand = _InHand(self._begun, episode)
        self._numbers[episode.key] = in_hand.number
        self._in_hand[in_hand.number] = in_hand
        return in_hand

    async def _place(self, in_hand: _InHand) -> None:
        """Place the episode in a process. Raises: RunError if none could be started."""
        episode = in_hand.episode
        is_alone = self._settings.agent.isolation == "process" or episode.key[:2] in self._suspects
        child = await self._pool.place(is_alone=is_alone)
        if in_hand.number not in self._in_hand:  # ended meanwhile
            self._pool.answered(child)
            return
        in_hand.child = child
        door = NO_DOOR if self._door is None else (self._door.url, self._door.desk.open(in_hand.number))
        child.begin(in_hand.number, episode.seed, episode.row, door, episode.state)

    def _answer(self, turn: Turn, frames: tuple[bytes, ...]) -> None:
        number = self._numbers.get((turn.group, turn.episode, turn.trial))
        if number is not None:
            in_hand = self._in_hand[number]
            in_hand.in_order(partial(self._take_turn, in_hand, turn, frames))

    def _take_turn(self, in_hand: _InHand, turn: Turn, frames: tuple[bytes, ...]) -> None:
        number = in_hand.number
        try:
            found = in_hand.episode.take(turn, frames[0])
        except ValueError as error:  # of a renderer of the user's own
            self._end(in_hand.episode.key)
            self._fail(in_hand, "agent", str(error))
            return
        if found is None or in_hand.child is None:
            return
        question, answer = found
        if isinstance(question, DoorQuestion):
            assert self._renderer is not None
            in_hand.child.count(number, answer["place"], id=question.name_of(turn))  # before its client knows
            question.take(turn, answer["message"], frames, self._renderer.text)
        else:
            in_hand.child.answer(number, question, answer)
        in_hand.heard(turn)

    def _end(self, key: EpisodeKey) -> None:
        """Drop an episode, without a report."""
        number = self._numbers.get(key)
        if number is not None and (in_hand := self._take(number)) is not None and in_hand.child is not None:
            in_hand.child.cancel(number)
            self._pool.answered(in_hand.child)

    # -- what its processes say -----------------------------------------------------------------------

    def on_ask(self, child: AgentChild, number: int, question: int, asked: dict[str, Any]) -> None:
        """An episode asks its policy."""
        began = time.monotonic()
        self._pool.answered(child)
        if (in_hand := self._in_hand.get(number)) is None:
            return

        def refuse(error: BudgetExceeded | ValueError) -> None:
            limit = error.limit if isinstance(error, BudgetExceeded) else ""
            child.refuse(number, question, limit, str(error))

        in_hand.in_order(partial(self._ask, in_hand, _Request(question, asked, began, refuse)))

    def on_chat(self, number: int, question: DoorQuestion) -> None:
        """A client of an episode asks its policy. Raises: DoorRefusal, if the refusal is known at once."""
        began, in_hand = time.monotonic(), self._in_hand[number]
        child = in_hand.child
        assert child is not None
        self._pool.answered(child)

        def refuse(error: BudgetExceeded | ValueError) -> None:
            if isinstance(error, BudgetExceeded):
                child.count(number, in_hand.episode.asked, limit=error.limit)
            question.refuse(refusal_of(error, question.request.param))

        request = _Request(question, question.request.question, began, refuse)
        in_hand.in_order(partial(self._ask, in_hand, request))
        if question.refusal is not None:
            raise question.refusal

    def _ask(self, in_hand: _InHand, request: _Request) -> None:
        try:
            asked = in_hand.episode.ask(request.number, request.question)
        except SlowRequest as slow:
            if self._is_draining:
                return
            in_hand.slow = self._create(self._ask_slowly(in_hand, request, slow), "encode a long text")
        except (BudgetExceeded, ValueError) as error:
            request.refuse(error)
        else:
            self._send(in_hand, request, asked)

    async def _ask_slowly(self, in_hand: _InHand, request: _Request, slow: SlowRequest) -> None:
        """Ask a question that a thread has to encode, then run later actions. Cancelled with its episode."""
        try:
            asked = slow.open(await self._long_texts.run(slow.place))
        except (BudgetExceeded, ValueError) as error:
            request.refuse(error)
        else:
            self._send(in_hand, request, asked)
        in_hand.slow = None
        while in_hand.behind and in_hand.slow is None:
            in_hand.behind.popleft()()

    def _send(self, in_hand: _InHand, request: _Request, asked: Asked) -> None:
        ask, frames = asked
        if isinstance(request.number, DoorQuestion):
            request.number.begin(ask.keep + ask.given)
        in_hand.asked_at[ask.member] = request.began
        self._link.send(ask, *frames)

    def on_ended(self, number: int, ended: Ended) -> None:
        """Report an episode that has ended."""
        if (in_hand := self._take(number)) is None:
            return
        reward = ended.reward
        talk = in_hand.episode.talk() if reward is None else b""
        if reward is None and not self._settings.reward.entries:
            self._fail(
                in_hand, "agent",
                "The agent returned None, and there is no `reward.function` that could score what was said. "
                "Return a number, or set `reward.function`.",
            )  # fmt: skip
        elif not in_hand.episode.turns:
            self._fail(in_hand, "agent", NO_TRAINED_TURN)
        elif (rewards := _turn_rewards(in_hand.episode, ended)) is None:
            told = f"{len(ended.turn_rewards)} rewards of turns, and had {in_hand.episode.turns} turns"
            self._fail(in_hand, "agent", f"The process of the agent named {told}.")
        elif len(talk) > self._settings.agent.max_state_mb << 20:
            self._fail(in_hand, "agent", too_long_to_score(len(talk), self._settings.agent.max_state_mb))
        else:
            ending = ended.limit or in_hand.episode.cut_by or "stop"
            self._link.send(
                EpisodeEnded(
                    *in_hand.episode.key,
                    ending=cast("EpisodeEnding", ending),
                    reward=() if reward is None else (reward,),
                    turn_rewards=rewards,
                    metrics=ended.metrics,
                    talk=len(talk),
                    awaited=tuple(in_hand.awaited),
                    log=ended.log,
                    earned="scored" if reward is None else ended.earned,
                ),
                *((talk,) if talk else ()),
            )
        if in_hand.child is not None:
            self._pool.answered(in_hand.child)

    def on_failed(self, number: int, kind: FailureKind, reason: str) -> None:
        """Report an episode that has failed."""
        if (in_hand := self._take(number)) is None:
            return
        if kind == "process":
            self._suspects.append(in_hand.episode.key[:2])
        self._fail(in_hand, kind, reason)
        if in_hand.child is not None:
            self._pool.answered(in_hand.child)

    def _fail(self, in_hand: _InHand, kind: FailureKind, reason: str) -> None:
        reason, row = begin_and_end(reason), _shown(in_hand.episode.row)
        self._link.send(EpisodeFailed(*in_hand.episode.key, kind=kind, reason=reason, row=row))

    def _take(self, number: int) -> _InHand | None:
        in_hand = self._in_hand.pop(number, None)
        if in_hand is not None:
            del self._numbers[in_hand.episode.key]
            if in_hand.slow is not None:
                in_hand.slow.cancel()
            in_hand.behind.clear()
            if self._door is not None:
                self._door.desk.close(number)
        return in_hand


def too_long_to_score(size_bytes: int, max_mb: int) -> str:
    """The error message for messages that are too large for `reward.function`."""
    return (
        f"The messages of the episode have {size_bytes:,} bytes; agent.max_state_mb allows {max_mb} MB for "
        "`reward.function`. Return a reward from the agent, give less text, or raise it."
    )


def _shown(row: bytes) -> str:
    """A row as text for people."""
    return begin_of(row.decode(errors="replace"))


def _turn_rewards(episode: HostedEpisode, ended: Ended) -> tuple[tuple[int, int, float], ...] | None:
    """The turn rewards by trajectory and number; None if a turn does not exist."""
    if not all(episode.has_answered(place) for place, _ in ended.turn_rewards):
        return None
    return tuple((*episode.turn_at(place), value) for place, value in ended.turn_rewards)
