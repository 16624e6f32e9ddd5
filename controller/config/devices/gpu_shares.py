"""Which GPUs of one machine each worker gets that the controller starts there.

Invariants: pure; a worker whose device is `cpu` or `cuda:N`, or whose engine is the user's, keeps what the
controller sees; equal settings and GPUs give equal shares, so a worker that is started again gets the GPUs
that it had.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from protocol.engines import ENGINES
from protocol.messages import Role
from protocol.rewards.settings import RewardSettings
from protocol.settings import RolloutSettings, TrainerSettings

VARIABLE = "CUDA_VISIBLE_DEVICES"
ANY = ("auto", "cuda")  # devices that leave open which GPU it is

GpuFinding = tuple[Literal["error", "note"], str, str]
"""Level, field, text."""


class WantsGpus(Protocol):
    """What says who wants GPUs: the configuration, or the settings that workers are sent."""

    @property
    def rollout(self) -> RolloutSettings: ...
    @property
    def trainer(self) -> TrainerSettings: ...
    @property
    def reward(self) -> RewardSettings: ...
    @property
    def is_colocated(self) -> bool: ...


class GpuShares(NamedTuple):
    """GPUs by their names in CUDA_VISIBLE_DEVICES; () where a worker keeps what the controller sees.

    Of instances and reward workers the first entry is that of number 0; behind the last it begins again.
    """

    trainer: tuple[str, ...] = ()  # one of each rank, in order
    instances: tuple[tuple[str, ...], ...] = ()
    reward_models: tuple[str, ...] = ()  # one of each reward worker with a reward model
    idle: tuple[str, ...] = ()  # GPUs that no worker gets

    def of(self, role: Role, place: int) -> tuple[str, ...]:
        """The GPUs of the worker that is number `place`, from 0, of its role."""
        if role == "trainer":
            return self.trainer
        if role == "rollout" and self.instances:
            return self.instances[place % len(self.instances)]
        if role == "reward" and self.reward_models:
            return (self.reward_models[place % len(self.reward_models)],)
        return ()

    def environment(self, role: Role, name: str) -> dict[str, str]:
        """The variable with which a worker sees its GPUs alone; {} if it keeps what the controller sees.

        `name`: as `rollout-3`; a worker whose name has no number is the first of its role.
        """
        number = name.rpartition("-")[2]
        gpus = self.of(role, int(number) if number.isdecimal() else 0)
        return {VARIABLE: ",".join(gpus)} if gpus else {}


def gpu_shares(settings: WantsGpus, visible: Sequence[str]) -> GpuShares:
    """The GPUs of each worker of this machine, of those that are visible.

    The ranks of the trainer take the first. Each instance takes as many as it spans
    (`rollout.vllm.tensor_parallel_size`) of the others. Instances beyond that share them in turn, and where
    the trainer leaves none they share its. With `placement: colocated` they take turns with the trainer, so
    they take of all. A reward worker with a reward model takes one that is idle, or that of an instance.
    """
    if len(visible) < 2:
        return GpuShares()
    rollout, trainer = settings.rollout, settings.trainer
    not_asked = [gpu for gpu in visible if gpu not in _asked(rollout.device, visible)]
    ranks = trainer.ranks if trainer.local and trainer.engine == "fsdp" and trainer.device in ANY else 0
    of_ranks = tuple((not_asked if len(not_asked) >= ranks else visible)[:ranks])
    taken = {*of_ranks, *(_asked(trainer.device, visible) if trainer.local else ())}
    slots: list[tuple[str, ...]] = []
    if rollout.engine in ENGINES and rollout.device in ANY and not trainer.is_supervised:
        width = _width(settings)
        rest = [gpu for gpu in visible if gpu not in taken or settings.is_colocated]
        pool = rest if len(rest) >= width else visible
        slots = [tuple(pool[begin : begin + width]) for begin in range(0, len(pool) - width + 1, width)]
    used = taken | {*_asked(rollout.device, visible)}
    used |= {gpu for slot in slots[: rollout.instances] for gpu in slot}
    idle = tuple(gpu for gpu in visible if gpu not in used)
    judges: tuple[str, ...] = ()
    if settings.reward.device in ANY and any(entry.kind == "model" for entry in settings.reward.entries):
        judges = idle or tuple(slot[0] for slot in reversed(slots)) or of_ranks[-1:]
        idle = idle[settings.reward.workers :]
    return GpuShares(of_ranks, tuple(slots), judges, idle)


def _asked(device: str, visible: Sequence[str]) -> Sequence[str]:
    """The GPU that the user wrote down, as `cuda:N`; () if there is none."""
    kind, _, index = device.partition(":")
    return visible[int(index) :][:1] if kind == "cuda" and index.isdigit() else ()


def _width(settings: WantsGpus) -> int:
    """GPUs of one instance."""
    return settings.rollout.vllm.tensor_parallel_size if settings.rollout.engine == "vllm" else 1


def gpu_findings(settings: WantsGpus, visible: Sequence[str]) -> Iterator[GpuFinding]:
    """How the GPUs of this machine are shared; errors where they do not suffice."""
    rollout, trainer = settings.rollout, settings.trainer
    if not visible:
        return
    is_trained_here = trainer.local and trainer.engine == "fsdp"
    if is_trained_here and trainer.ranks > 1 and trainer.device.startswith("cuda:"):
        yield (
            "error", "trainer.device",
            f"is {trainer.device}, one GPU, and each of {trainer.ranks} ranks (trainer.ranks) needs one. "
            "Give cuda.",
        )  # fmt: skip
    of = gpu_shares(settings, visible)
    total = f"{len(visible)} GPU{'s' * (len(visible) > 1)}"
    shown = f"and this machine shows {total} ({VARIABLE}, or the driver)"
    if is_trained_here and trainer.device in ANY and trainer.ranks > len(visible):
        others = "" if settings.is_colocated else ", or start ranks on several machines (docs/clusters.md)"
        yield (
            "error", "trainer.ranks",
            f"is {trainer.ranks}, {shown}. Each rank needs one: give at most {len(visible)}{others}.",
        )  # fmt: skip
    if rollout.engine == "vllm" and rollout.device in ANY and _width(settings) > len(visible):
        yield (
            "error", "rollout.vllm.tensor_parallel_size",
            f"is {_width(settings)}, {shown}. Give at most {len(visible)}.",
        )  # fmt: skip
        return
    crowd = -(-rollout.instances // max(1, len(of.instances)))
    share = rollout.vllm.gpu_memory_utilization
    is_vllm = rollout.engine == "vllm" and rollout.device in ANY and rollout.vllm.kv_cache_gb is None
    if is_vllm and crowd > 1 and crowd * share > 1 and not trainer.is_supervised:
        yield (
            "error", "rollout.instances",
            f"{crowd} of {rollout.instances} instances would share a GPU, of which each takes {share:g} "
            f"(rollout.vllm.gpu_memory_utilization). Give fewer instances, or at most {1 / crowd:.2f}.",
        )  # fmt: skip
    if of.trainer or of.instances:
        parts = [f"the trainer has {_named(of.trainer)}"] if of.trainer else []
        if of.instances and rollout.instances:
            used = [gpu for slot in of.instances[: rollout.instances] for gpu in slot]
            is_shared = bool({*used} & {*of.trainer})
            both = ", as the trainer leaves none" if is_shared else ""
            if settings.is_colocated:
                both = ", in turn with the trainer" if is_shared else ""
            word = "instances share" if crowd > 1 or is_shared else "instances have"
            parts.append(f"{rollout.instances} {word} {_named(used)}{both}")
        if of.idle:
            more = "raise rollout.instances or trainer.ranks; `launch.py simulate --gpus N` finds a split"
            parts.append(f"{_named(of.idle)} {'is' if len(of.idle) == 1 else 'are'} idle: {more}")
        yield "note", "rollout.instances", f"of {total}, {'; '.join(parts)}."


def _named(gpus: Sequence[str]) -> str:
    return f"GPU{'s' * (len(gpus) > 1)} {', '.join(gpus)}"
