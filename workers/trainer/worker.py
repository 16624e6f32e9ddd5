"""The trainer worker: receives batches and orders over the link, and publishes policy versions.

Invariants:
- Everything that touches the model runs in one thread, so the event loop keeps sending beats.
- It continues from the newest complete checkpoint of the run, and reports that version in Ready.
- Versions are published in order, each from a copy that is taken while the next batch is trained on, and is
  whole before a weight changes; at most one more waits, so slow publishing holds training back. A version
  that is made again is not published again.
- A checkpoint is copied to host memory between two steps, and written while the next ones go on.
- Writes in progress when the link is lost are finished before `run` returns: a successor finds them whole,
  and no other process writing. The model is not kept: only the next controller's journal knows the version
  from which it continues.
- Rank 0 alone has the link; the other ranks repeat its orders (`follow`), and start over when it does.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TypeVar, assert_never, cast

from protocol.blame import shown, without_stop
from protocol.errors import ConfigError, first_cause
from protocol.importing import load_object
from protocol.messages import (
    MAX_METRICS,
    CheckpointSaved,
    Message,
    PolicyPublished,
    Ready,
    Release,
    Released,
    Retire,
    SaveCheckpoint,
    Serve,
    Serving,
    Take,
    ToTrainer,
    Train,
    TrainAhead,
    TrainedAhead,
    TrainStepFinished,
    Welcome,
)
from protocol.plain_text import plain_line
from protocol.settings import WorkerSettings, load_settings
from workers.link.link import Link, LinkClosed
from workers.trainer.checkpoints import newest_checkpoint, remove_cut_off, require_run_directory
from workers.trainer.interface import (
    BackgroundCheckpoints,
    CorrectingTrainer,
    MeteredTrainer,
    ReleasingTrainer,
    StreamingTrainer,
    TimedTrainer,
    TrainerEngine,
)
from workers.trainer.publishing.copies import Copies, Copy
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.ranks import share_settings, torch_errors_in_words, word_for_others
from workers.trainer.saved.kept_aside import KeptAside
from workers.trainer.token_batch import CorrectedTokens
from workers.trainer.trainer import Trainer
from workers.weights.exchange_process import make_weights_exchange

__all__ = ["Trainer", "TrainerWorker", "follow"]

NOTHING = CorrectedTokens()
MAX_NAME_CHARS = 200  # of a metric name, as in the protocol
Result = TypeVar("Result")
log = logging.getLogger("workers")


class TrainerWorker:
    """Rank 0 of the trainer behind a link."""

    _trainer: TrainerEngine
    _link: Link

    def __init__(self, settings: WorkerSettings, model_directory: str) -> None:
        self._settings = settings
        self._model_directory = model_directory
        self._snapshots: asyncio.Queue[Future[Copy] | None] = asyncio.Queue(maxsize=1)
        self._checkpoints: asyncio.Queue[tuple[int, Callable[[], Path]] | None] = asyncio.Queue(maxsize=1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._is_draining = False
        self._wake: Callable[[], None] = lambda: None  # wakes the loop that serves, once there is one

    def drain(self) -> None:
        """Return from `run` after the current order and publication."""
        self._is_draining = True
        self._wake()

    async def run(self, link: Link) -> None:
        """Serve until drained, once; the process group stays.

        Raises: LinkClosed; RunError or ConfigError if training cannot go on.
        """
        self._link, self._wake = link, link.wake
        closed: LinkClosed | None = None
        try:
            async with AsyncExitStack() as stack:
                if self._settings.is_colocated and not await self._is_given_device(link):
                    return
                await self._get_ready(link, stack)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(), name="publisher")
                    tasks.create_task(self._save(), name="checkpoints")
                    if not self._settings.trainer.is_supervised:  # then no worker pulls
                        await self._snapshot()
                    try:
                        await self._serve()
                    except LinkClosed as error:
                        closed = error
                        if error.may_reattach:
                            log.info("The link is closed. What is being written is finished first.")
                    await self._snapshots.put(None)
                    await self._checkpoints.put(None)
        except BaseExceptionGroup as group:
            first = first_cause(group)
            raise first from first.__cause__
        if closed is not None:
            raise closed

    async def _is_given_device(self, link: Link) -> bool:
        """Wait until the shared device is the trainer's; False if the worker is drained before."""
        while not self._is_draining:
            if (item := link.receive_nowait()) is None:
                await link.arrived.wait()
            else:
                assert isinstance(item[0], Take), f"told {item[0]} before it has the device"
                return True
        return False

    async def _get_ready(self, link: Link, stack: AsyncExitStack) -> None:
        stack.callback(self._thread.shutdown, wait=False)
        await self._in_thread(require_run_directory, Path(self._settings.run_dir))
        await self._in_thread(share_settings, self._settings)
        self._trainer = await self._in_thread(make_trainer, self._settings, self._model_directory)
        self._publisher = await self._in_thread(make_publisher, self._settings, self._trainer)
        self._copies = Copies(self._trainer, self._publisher)
        stack.callback(self._let_go)
        if self._settings.is_colocated:
            self._kept_aside = make_kept_aside(self._settings, self._trainer)
            stack.callback(self._kept_aside.close)
        self._weights_exchange = make_weights_exchange(
            self._publisher.directory, lambda: link, self._settings, is_writers=True
        )
        stack.push_async_callback(self._weights_exchange.close)
        self._announce_survivors()
        link.send(Ready(self._trainer.policy_version, 0, 0))
        log.info("Ready at version %d.", self._trainer.policy_version)

    def _let_go(self) -> None:
        """Free the trainer: a traceback may keep `self` alive, but not a model on a GPU."""
        self._copies.close()
        self._publisher.close()
        del self._trainer, self._publisher, self._copies

    async def _serve(self) -> None:
        while not self._is_draining:
            if (item := self._link.receive_nowait()) is None:
                await self._link.arrived.wait()
            else:
                await self._handle(*item)

    async def _handle(self, message: Message, frames: tuple[bytes, ...]) -> None:
        order = cast("ToTrainer", message)  # the link lets nothing else pass
        match order:
            case Train(train_version):
                began = time.perf_counter()
                metrics = await self._in_thread(self._train, order, frames)
                train_s = time.perf_counter() - began
                found = self._trainer.corrections if isinstance(self._trainer, CorrectingTrainer) else NOTHING
                report = TrainStepFinished(train_version + 1, train_s, sound(metrics), found.places)
                self._link.send(report, *found.frames)
                if not order.is_published:
                    await self._snapshot()
            case TrainAhead(train_version):
                await self._in_thread(self._train_ahead, order, frames)
                self._link.send(TrainedAhead(train_version))
            case SaveCheckpoint(policy_version):
                write = await self._in_thread(self._begin_checkpoint, order)
                await self._checkpoints.put((policy_version, write))
            case Retire(policy_version):
                for version in await self._weights_exchange.retire(policy_version):
                    await asyncio.to_thread(self._publisher.retire, version)
            case Release():
                self._link.send(await self._in_thread(self._leave_device, order))
            case Take():
                await self._in_thread(self._take_device, order)
            case Serve():
                self._link.send(Serving(await self._weights_exchange.start()))
            case _:
                assert_never(order)

    def _leave_device(self, order: Release) -> Released:
        began = time.perf_counter()
        self._trainer.ranks.broadcast(order)
        self._copies.finish()
        found = self._kept_aside.release()
        return Released(found.peak_bytes, found.left_bytes, time.perf_counter() - began)

    def _take_device(self, order: Take) -> None:
        self._trainer.ranks.broadcast(order)
        self._kept_aside.take()

    def _train(self, train: Train, frames: tuple[bytes, ...]) -> dict[str, float]:
        self._trainer.ranks.broadcast(train, frames)
        metrics = self._trainer.train_step(train, frames)
        if isinstance(self._trainer, TimedTrainer):
            metrics |= {f"time_s/{name}": spent for name, spent in self._trainer.seconds.items()}
        if isinstance(self._trainer, MeteredTrainer):
            metrics |= self._trainer.compute
        return metrics

    def _train_ahead(self, order: TrainAhead, frames: tuple[bytes, ...]) -> None:
        self._trainer.ranks.broadcast(order, frames)
        assert isinstance(self._trainer, StreamingTrainer), "make_trainer has looked"
        self._trainer.train_ahead(order, frames)

    def _begin_checkpoint(self, order: SaveCheckpoint) -> Callable[[], Path]:
        self._trainer.ranks.broadcast(order)
        return begin_checkpoint(self._trainer, order.policy_version)

    async def _save(self) -> None:
        while (begun := await self._checkpoints.get()) is not None:
            policy_version, write = begun
            path = await asyncio.to_thread(write)
            log.info("%s is written.", path)
            self._link.send(CheckpointSaved(policy_version, str(path)))

    def _announce_survivors(self) -> None:
        """Report versions that outlived the trainer before this one: the run may continue with them."""
        for version, published in self._publisher.survivors(self._trainer.policy_version):
            self._link.send(PolicyPublished(version, *published, 0.0))

    async def _snapshot(self) -> None:
        await self._snapshots.put(await self._in_thread(self._copies.begin))

    async def _publish(self) -> None:
        while (copying := await self._snapshots.get()) is not None:
            version, written, write_s = await asyncio.wrap_future(copying)
            assert written is not None, "rank 0 writes"
            began = time.perf_counter()
            published = await asyncio.to_thread(self._publisher.seal, written)
            self._link.send(PolicyPublished(version, *published, write_s + time.perf_counter() - began))

    async def _in_thread(self, call: Callable[..., Result], *arguments: object) -> Result:
        with torch_errors_in_words():
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, without_stop, call, *arguments
            )


def sound(metrics: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Metrics in the form that the controller accepts, whatever a user's trainer or loss reports.

    Finite numbers under one-line names.
    """
    kept: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except Exception:  # whatever the user reports
            number = math.nan
        if math.isfinite(number):
            kept[plain_line(str(name))[:MAX_NAME_CHARS] or "unnamed"] = number
        else:
            log.warning("The metric %r is %s, and is left out: it is no finite number.", name, shown(value))
    return tuple(kept.items())[:MAX_METRICS]


def make_trainer(settings: WorkerSettings, model_directory: str) -> TrainerEngine:
    """The trainer that `trainer.engine` names, restored from the newest complete checkpoint of the run.

    Raises: ConfigError if it cannot be made; RunError if the checkpoint does not fit it.
    """
    name = settings.trainer.engine
    make: Callable[[WorkerSettings, str], TrainerEngine] = Trainer if name == "fsdp" else load_object(name)
    trainer = make(settings, model_directory)
    if settings.trainer.streaming and not isinstance(trainer, StreamingTrainer):
        raise ConfigError(
            f"`trainer.streaming` is on, and {name} has no method `train_ahead`; expected one as in "
            "workers/trainer/trainer.py. Write it, or leave trainer.streaming out."
        )
    if settings.is_colocated and not isinstance(trainer, ReleasingTrainer):
        raise ConfigError(
            f"`placement` is colocated, and {name} has no method `held`; expected one as in "
            "workers/trainer/trainer.py. Write it, or leave placement out."
        )
    checkpoints, is_first = Path(settings.run_dir) / "checkpoints", os.environ.get("RANK", "0") == "0"
    checkpoint = newest_checkpoint(checkpoints, at_most=settings.newest_version, is_first=is_first)
    if is_first:
        remove_cut_off(checkpoints)
    if checkpoint is not None:
        log.info("Going on from %s.", checkpoint)
        trainer.load_checkpoint(checkpoint)
    return trainer


def begin_checkpoint(trainer: TrainerEngine, policy_version: int) -> Callable[[], Path]:
    """Like `Trainer.begin_checkpoint`; a user's trainer with only `save_checkpoint` writes at once."""
    if isinstance(trainer, BackgroundCheckpoints):
        return trainer.begin_checkpoint(policy_version)
    path = trainer.save_checkpoint(policy_version)
    return lambda: path


def make_publisher(settings: WorkerSettings, trainer: TrainerEngine) -> Publisher:
    """This rank's publisher of a trainer's versions. Raises: RunError."""
    return Publisher(settings, trainer.ranks, trainer.tensors_for_publish())


def make_kept_aside(settings: WorkerSettings, trainer: TrainerEngine) -> KeptAside:
    """What moves this rank's memory off the device that it shares, and back."""
    assert isinstance(trainer, ReleasingTrainer), "make_trainer has looked"
    return KeptAside(trainer, settings.run_dir)


def follow(settings: WorkerSettings, model_directory: str) -> WorkerSettings | None:
    """Be a rank other than 0: repeat rank 0's orders until it stops or starts over.

    Returns the settings to start over with, or None if rank 0 has stopped. RANK, WORLD_SIZE and MASTER_*
    place this rank.

    Raises: RunError if rank 0 is lost, ConfigError if the model or the process group cannot be set up.
    """
    with word_for_others(), torch_errors_in_words(), ExitStack() as stack:
        trainer = make_trainer(settings, model_directory)
        copies = Copies(trainer, make_publisher(settings, trainer))
        stack.callback(copies.close)
        if not settings.trainer.is_supervised:
            copies.begin()
        saving = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="checkpoints"))
        begun: Future[Path] | None = None
        kept_aside = make_kept_aside(settings, trainer) if settings.is_colocated else None
        if kept_aside is not None:
            stack.callback(kept_aside.close)
        while True:
            order, frames = trainer.ranks.receive()
            match order:
                case Train(_, _, is_published):
                    trainer.train_step(order, frames)
                    if not is_published:
                        copies.begin()
                case TrainAhead():
                    assert isinstance(trainer, StreamingTrainer), "make_trainer has looked"
                    trainer.train_ahead(order, frames)
                case SaveCheckpoint(policy_version):
                    if begun is not None:
                        begun.result()
                    begun = saving.submit(begin_checkpoint(trainer, policy_version))
                case Release():
                    assert kept_aside is not None, "the core releases a shared device only"
                    copies.finish()
                    kept_aside.release()
                case Take():
                    assert kept_aside is not None, "the core takes a shared device only"
                    kept_aside.take()
                case Welcome():
                    return load_settings(order.settings)
                case _:
                    if begun is not None:
                        begun.result()
                    trainer.ranks.stop()
                    return None
