"""The trainer's ranks: one process group, and orders from rank 0 to the others.

Invariants: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT place each rank, as torchrun sets them;
settings reach the other ranks through the rendezvous store, so they need no file and no link, and the
settings of a later controller as an order; orders travel as raw bytes in the wire's encoding, never pickled;
every rank gets the same orders in the same order; the process group outlives the trainers that its ranks make
one after the other; a single rank needs no environment, and of the network only an interface.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]  # torch has no other door
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from protocol.errors import ConfigError, PluginError, RankLost, RunError, StaleFlowError
from protocol.messages import Message, Welcome
from protocol.settings import WorkerSettings, load_settings
from protocol.wire.codec import from_fields, pack, to_fields, unpack
from workers.models.out_of_memory import is_of_memory

log = logging.getLogger("workers")
STOP = 0  # an order without a message; tags of messages are positive
# ranks wait for an order as long as rollouts take; a rank that dies closes its sockets, which ends the wait
PATIENCE = timedelta(days=30)
INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
SETTINGS = "staleflow/settings"  # key in the store of the rendezvous
FAILED = "staleflow/failed"  # likewise: which rank failed first, and why


@cache
def _meet() -> tuple[Store, int, int]:
    """The store that all ranks share, this rank, and how many there are. Raises: ConfigError."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return HashStore(), 0, 1
    try:
        store, rank, size = next(rendezvous("env://"))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Trainer rank {os.environ.get('RANK', '?')} of {size} could not join at "
            f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}: {error}. "
            "Expected RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT to be set alike for every rank."
        ) from error
    store.set_timeout(PATIENCE)
    # torchrun keeps one store over its restarts: what the lost ranks have left there must not be found
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}", store), rank, size


def share_settings(settings: WorkerSettings) -> None:
    """Send the settings of the run from rank 0 to the other ranks.

    If they served an earlier controller, they start over with these. Raises: ConfigError.
    """
    store, _, size = _meet()
    if size > 1 and dist.is_initialized():
        _give(Welcome(0.0, 0.0, settings.model_dump_json()))
    elif size > 1:
        store.set(SETTINGS, settings.model_dump_json())


def shared_settings() -> WorkerSettings | None:
    """Wait, on other ranks, for the settings of the run; None if rank 0 left before it was attached.

    Raises: ConfigError, or RunError if rank 0 was lost.
    """
    store, _, _ = _meet()
    try:
        text = store.get(SETTINGS).decode()
    except RuntimeError as error:
        raise RunError(f"Rank 0 was lost before it was attached; its log says why: {error}.") from error
    return load_settings(text) if text else None


@contextmanager
def word_for_others() -> Iterator[None]:
    """Tell the other ranks why this one fails, before its connections close."""
    try:
        yield
    except StaleFlowError as error:
        store, rank, _ = _meet()
        if not isinstance(error, RankLost):
            with suppress(RuntimeError):  # rank 0, which has the store, is lost, too
                words = str(error).removeprefix("The trainer failed: ")
                store.compare_set(FAILED, "", f"Trainer rank {rank} failed: {words}")
        raise


def _lost(error: BaseException) -> RunError:
    """What a collective ends with that another rank has left: that rank's own word, if it left one."""
    with suppress(RuntimeError):
        store, _, _ = _meet()
        if store.check([FAILED]):
            return RunError(store.get(FAILED).decode())
    torchs = str(error).partition(". This is typically")[0]
    return RankLost(
        f"Another trainer rank was lost, and the others cannot go on without it: {torchs}. Its log may say "
        "why; who started it knows whether it was killed. Resume from the newest checkpoint."
    )


def dismiss() -> None:
    """Rank 0: end the other ranks, which wait for an order or still for settings.

    Raises: ConfigError or RuntimeError if they are gone.
    """
    store, _, size = _meet()
    if size > 1 and dist.is_initialized():
        _disband()
    elif size > 1:
        store.set(SETTINGS, "")


def _disband() -> None:
    if dist.get_rank() == 0:
        _give(None)
    dist.destroy_process_group()
    _meet.cache_clear()  # the next process group of this process has another rendezvous


def _give(message: Message | None, frames: Sequence[bytes] = ()) -> None:
    tag = STOP if message is None else message.tag
    parts = [b"" if message is None else pack(to_fields(message)), *frames]
    dist.broadcast(torch.tensor([tag, len(parts)], dtype=torch.int64), src=0)
    dist.broadcast(torch.tensor([len(part) for part in parts], dtype=torch.int64), src=0)
    for part in filter(None, parts):
        # a copy, because torch wants to own memory that it may write to
        dist.broadcast(torch.from_numpy(np.frombuffer(part, dtype=np.uint8).copy()), src=0)


class Ranks:
    """This process's place among the trainer's ranks."""

    def __init__(self, device: torch.device) -> None:
        """Join the group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name; alone if they are unset.

        Raises: ConfigError if they are incomplete or the group does not come together.
        """
        self.device = device
        if device.type == "cuda":
            index = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
            self.device = torch.device("cuda", index if device.index is None else device.index)
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            self._join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh: DeviceMesh = init_device_mesh(device.type, (self.size,))
        self._background: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if self.size > 1 else None

    def _join(self, backend: str) -> None:
        store, rank, size = _meet()
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        except (ValueError, RuntimeError) as error:
            chosen = [f"{name}={os.environ[name]}" for name in INTERFACES if name in os.environ]
            among = (
                f" {' and '.join(chosen)} in the environment must name one of this host." if chosen else ""
            )
            if size == 1:
                raise ConfigError(
                    f"The trainer could not make a process group of its own by {backend}: {error}. Expected "
                    f"free memory, and a network interface that is up (the loopback is enough).{among}"
                ) from error
            raise ConfigError(
                f"Trainer rank {rank} of {size} could not join the others by {backend}: {error}. Expected as "
                f"many GPUs on each host as ranks, and hosts that reach each other.{among}"
            ) from error

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place, on every rank."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """On rank 0 every rank's `values`, in order; elsewhere nothing. They are on the CPU, of one shape."""
        if self.size == 1:
            return [values]
        parts = [torch.empty_like(values) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(values, parts, dst=0)
        return parts or []

    def meet(self, word: str) -> list[str]:
        """Send rank 0 a text, of which it gets 256 bytes; on rank 0, returns every rank's text, in order.

        Callable in one thread beside the training thread. Raises: RunError if a rank is lost.
        """
        letters, encoded = torch.zeros(256, dtype=torch.uint8), word.encode()[:256]
        letters[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        told = [torch.empty_like(letters) for _ in range(self.size)] if self.rank == 0 else None
        try:
            dist.gather(letters, told, dst=0, group=self._background)
        except RuntimeError as error:
            raise _lost(error) from error
        return [bytes(one[one > 0].tolist()).decode(errors="ignore") for one in told or []]

    def raise_alike(self, error: PluginError | None) -> None:
        """Raise on every rank the first rank's error, if a rank has one. Collective.

        So rank 0, which has the link, names the cause; the others outlast it. Raises: PluginError.
        """
        has_failed = torch.zeros(self.size, device=self.device)
        has_failed[self.rank] = error is not None
        if not self.sum(has_failed).any():
            return
        first = int(has_failed.argmax())
        text = torch.frombuffer(bytearray(str(error).encode()), dtype=torch.uint8)
        size = torch.tensor(len(text))
        dist.broadcast(size, src=first)
        letters = text if first == self.rank else torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(letters, src=first)
        raised = error or PluginError(letters.numpy().tobytes().decode())
        self.outlast_rank_0(raised)
        raise raised

    def outlast_rank_0(self, error: RunError) -> None:
        """Other ranks, before they raise an error that rank 0 has, too: wait until rank 0 has left.

        Rank 0 tells of it, and the first process that ends has the others killed.
        """
        if self.rank:
            log.error("%s", error, exc_info=error.__cause__)
            with suppress(RuntimeError):  # rank 0 has left
                self.receive()

    def broadcast(self, message: Message | None, frames: Sequence[bytes] = ()) -> None:
        """Rank 0: send an order to the other ranks; None ends them."""
        if self.size > 1:
            _give(message, frames)

    def receive(self) -> tuple[Message | None, tuple[bytes, ...]]:
        """Other ranks: wait for the next order; None means stop."""
        head = torch.zeros(2, dtype=torch.int64)
        dist.broadcast(head, src=0)
        tag, count = head.tolist()
        sizes = torch.zeros(count, dtype=torch.int64)
        dist.broadcast(sizes, src=0)
        parts = []
        for length in sizes.tolist():
            part = torch.empty(length, dtype=torch.uint8)
            if length:
                dist.broadcast(part, src=0)
            parts.append(part.numpy().tobytes())
        if tag == STOP:
            return None, ()
        return from_fields(tag, unpack(parts[0])), tuple(parts[1:])

    def stop(self) -> None:
        """Rank 0 ends the others; every rank leaves the process group. A single rank keeps its own."""
        if self.size > 1:
            _disband()


@contextmanager
def torch_errors_in_words() -> Iterator[None]:
    """Replace torch's errors by a RunError with a clear message; the traceback goes to the log."""
    try:
        yield
    except StaleFlowError:
        raise
    except (RuntimeError, ValueError, IndexError, OSError) as error:  # what torch raises
        log.exception("The trainer failed.")
        if _is_of_ranks(error):
            raise _lost(error) from error
        advice = ""
        if is_of_memory(error):
            advice = "Memory ran out: lower `trainer.max_tokens_per_microbatch`. "
        raise RunError(
            f"The trainer failed: {type(error).__name__}: {error}. {advice}The traceback is in the log. "
            "Resume from the newest checkpoint."
        ) from error


def _is_of_ranks(error: BaseException) -> bool:
    """Whether torch says that ranks no longer reach each other; gloo has no error class for it."""
    is_said = isinstance(error, dist.DistError) or "/gloo/" in str(error)
    return is_said and dist.is_initialized() and dist.get_world_size() > 1
