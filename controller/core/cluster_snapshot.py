"""A picture of the whole core: `Core.snapshot`.

Invariant: looking changes nothing, and no decision reads a picture.
"""

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from controller.core.liveness import idle_because
from controller.core.run_alarms import alarms_of
from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker
from controller.core.state.views.snapshot import ClusterSnapshot, WorkerSnapshot
from controller.core.waiting_for import next_step, oldest_group, working_on
from protocol.messages import MachineUse

if TYPE_CHECKING:
    from controller.core.core import Core


def snapshot_of(core: "Core") -> ClusterSnapshot:
    """The whole run now, frozen."""
    return _of_the_run(core, (_of_a_worker(core, worker) for worker in core.state.registry.workers.values()))


def snapshot_in_slices(core: "Core", workers: int) -> Generator[None, None, ClusterSnapshot]:
    """The same as a generator, with a pause after each `workers` rows; a row is as old as its slice."""
    found: list[WorkerSnapshot] = []
    for place, worker in enumerate([*core.state.registry.workers.values()], 1):
        if core.state.registry.workers.get(worker.peer) is worker:
            found.append(_of_a_worker(core, worker))
        if place % workers == 0:
            yield
    return _of_the_run(core, found)


def _of_the_run(core: "Core", workers: Iterable[WorkerSnapshot]) -> ClusterSnapshot:
    state = core.state
    groups: dict[str, int] = {}
    for group in state.groups.values():
        if not group.is_evaluation:
            groups[group.state] = groups.get(group.state, 0) + 1
    newest = state.versions.newest
    return ClusterSnapshot(
        now_s=state.now,
        train_version=state.ledger.train_version,
        steps=state.steps,
        published_version=newest.policy_version if newest else -1,
        due_counts=state.ledger.due_counts() if state.ledger.is_strict else {},
        buffers=state.ledger.buffers(),
        groups=groups,
        queued=len(state.queue),
        waiting_for=next_step(core),
        evaluating=core.evaluation.in_words(),
        oldest_group=oldest_group(state),
        tokens=state.accounts.tokens(),
        workers=tuple(workers),
        idle_because=idle_because(core),
        paused="" if state.paused is None else state.paused.in_words(state.now),
        alarms=tuple(alarms_of(core)),
    )


def _of_a_worker(core: "Core", worker: Worker) -> WorkerSnapshot:
    version, running, resident = -1, 0, 0
    if isinstance(worker, Instance):
        version, running, resident = worker.policy_version, len(worker.running), worker.resident_tokens
    elif isinstance(worker, TextWorker):
        running = worker.pending
    elif isinstance(worker, AgentWorker):
        running = len(worker.episodes)
    silent_s = core.state.now - worker.last_heard
    doing = working_on(core, worker) or core.limits.owed(worker)
    due_s, then = core.limits.outlook(worker)
    used = worker.usage or MachineUse(0, "")
    return WorkerSnapshot(
        worker.name, worker.role, worker.ready, version, running, resident, silent_s, doing,
        serves_at=worker.endpoint, due_s=due_s, then=then, resident_mb=used.resident_mb,
        device=used.device, device_mb=used.device_mb, device_total_mb=used.device_total_mb,
    )  # fmt: skip
