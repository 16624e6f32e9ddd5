"""Connections without a key, and descriptors that are spent: honest workers stay, come, and are started."""

import asyncio
import logging
import os
import resource
import sys
from contextlib import contextmanager

import pytest
from test_security import LIMIT_S, Guarded

from controller.core.events import WorkerExited
from controller.host.supervisor import Supervisor
from protocol.messages import Ready
from protocol.settings import WorkerSettings
from protocol.wire.security import Keyring, make_keys

STRANGERS = 16
FLOOD = 200


@contextmanager
def no_descriptors():
    """No file can be opened inside, nor a process started."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
async def guarded(tmp_path):
    made = Guarded(tmp_path / "keys", strangers=STRANGERS)
    yield made
    made.server.close()


async def test_idle_connections_make_room_for_the_next_and_an_honest_worker_stays_and_another_comes(guarded):
    link = await guarded.attach(guarded.key())
    port = int(guarded.server.endpoint.rpartition(":")[2])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(FLOOD)]
    ends = [asyncio.create_task(reader.read()) for reader, _ in idle]
    async with asyncio.timeout(LIMIT_S):
        for end in ends[: FLOOD - STRANGERS]:
            await asyncio.wait([end])
    another = await guarded.attach(guarded.key("node2"), name="node2")
    for honest in (link, another):
        honest.send(Ready(0, 0, 0))
        assert await honest.flush(LIMIT_S)
    assert sum(isinstance(message, Ready) for _, message in guarded.heard) == 2
    assert guarded.faults == []
    assert any("more connections without a key than may wait at once" in text for text in guarded.refusals)
    assert len(guarded.refusals) <= 8  # the 1st, 10th, 100th of each kind
    for end, (_, writer) in zip(ends, idle, strict=True):
        end.cancel()
        writer.close()
    for honest in (link, another):
        await honest.aclose()


async def test_keys_that_cannot_be_read_for_want_of_descriptors_stay_as_they_were(tmp_path):
    make_keys(tmp_path, "node1", ("rollout",))
    keyring = Keyring(tmp_path)
    (public,) = [grant for grant in (keyring.refresh(), *keyring.folder._by_key) if isinstance(grant, str)]
    with no_descriptors():
        keyring.folder._changed_ns = 0  # the folder may have changed
        assert not keyring.refresh()
        assert keyring.grant(public) is not None
    make_keys(tmp_path, "node2", ("rollout",))
    assert keyring.refresh()
    assert len(keyring.folder._by_key) == 2


async def test_a_worker_that_cannot_be_started_for_want_of_descriptors_is_started_later(tmp_path, caplog):
    exits: asyncio.Queue[WorkerExited] = asyncio.Queue()
    settings = WorkerSettings.model_validate(
        {"run_dir": "r", "seed": 0, "steps": 1, "model": {}, "rollout": {}, "reward": {}, "trainer": {}}
    )
    warned = asyncio.Event()
    handler = logging.Handler()
    handler.emit = lambda record: warned.set()
    logging.getLogger("staleflow.supervisor").addHandler(handler)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(
            tasks, endpoint="ipc://nowhere", logs=tmp_path, settings=settings, on_exit=exits.put_nowait,
            host=(sys.executable, "-c", "print('here')"),
        )  # fmt: skip
        with no_descriptors():
            supervisor.spawn("reward-0", "reward")
            await warned.wait()
        assert await exits.get() == WorkerExited("reward-0", "reward", 0, "here")
    logging.getLogger("staleflow.supervisor").removeHandler(handler)
    assert "reward-0 cannot be started yet, and is tried again: " in caplog.text
