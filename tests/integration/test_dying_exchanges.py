"""What a worker does when the process beside it that exchanges policy versions dies, or never lives."""

import asyncio
import resource
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from test_rollout_worker import rollout
from test_weights_channel import CHUNKS, WINDOW, Hosts, Source, agents, hosts, is_same, source  # noqa: F401 - fixtures
from worker_stand import Stand, exit_of

from protocol.errors import RunError, SourcesUnreachable, WeightsError
from protocol.messages import Pull, Pulled, PullFailed, Ready, Serve, Serving, WorkerFailed
from protocol.settings import WorkerSettings
from workers.link.link import Link
from workers.rollout.worker import MOST_WITHOUT_ROOM
from workers.weights import exchange_process
from workers.weights.exchange_process import COMMAND, MOST_DEATHS, make_weights_exchange
from workers.weights.manifest import CHUNK_BYTES

Result = TypeVar("Result")
LIVES = 'echo >> "$0"; [ $(wc -l < "$0") = 2 ] && exit 1; exec "$@"'


async def within(waited: Awaitable[Result]) -> Result:
    """What this comes to; nothing here takes three seconds, and what hangs fails."""
    return await asyncio.wait_for(waited, 60.0)


async def kill_exchange() -> None:
    (process,) = agents()
    process.kill()
    await asyncio.to_thread(process.wait)


async def test_an_exchange_that_cannot_be_started_says_so_to_each_who_asks(hosts: Hosts) -> None:  # noqa: F811
    trainer = hosts.add("trainer")
    trainer.command = ["/no/such/program"]
    for _ in range(2):
        with pytest.raises(WeightsError, match=r"cannot be started: .*No such file"):
            await within(trainer.start())
    trainer.command = COMMAND
    assert (await within(trainer.start())).startswith("tcp://")


async def test_one_that_says_what_is_no_answer_is_ended_in_words(hosts: Hosts) -> None:  # noqa: F811
    trainer = hosts.add("trainer")
    trainer.command = ["/bin/sh", "-c", "echo hello; exec cat > /dev/null"]
    with pytest.raises(WeightsError, match="ended with code -9"):
        await within(trainer.start())


async def test_a_version_is_retired_while_its_killed_exchange_is_started_again(
    hosts: Hosts,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, retiring = hosts.add("trainer"), list[asyncio.Future[list[int]]]()
    await within(trainer.start())
    real = asyncio.create_subprocess_exec

    async def start_again(*words, **options):
        retiring.append(asyncio.ensure_future(trainer.retire(1)))
        return await real(*words, **options)

    monkeypatch.setattr(exchange_process.asyncio, "create_subprocess_exec", start_again)
    await kill_exchange()
    await within(hosts.restarted.get())
    assert await within(retiring[0]) == [1]


async def test_one_that_dies_again_before_it_serves_is_started_again(hosts: Hosts, tmp_path: Path) -> None:  # noqa: F811
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    trainer.command = ["/bin/sh", "-c", LIVES, str(tmp_path / "lives"), *COMMAND]
    published, before = hosts.publish(1), await within(trainer.start())
    await kill_exchange()
    after = await within(hosts.restarted.get())
    assert len((tmp_path / "lives").read_text()) == 3
    fetched = await reader.fetch(1, published.digest, [before, after])
    assert is_same(published, fetched.location)


async def test_one_for_which_a_host_has_no_room_for_a_while_is_started_again_later(
    hosts: Hosts,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer, real, refused = hosts.add("trainer"), asyncio.create_subprocess_exec, [None] * 2
    before = await within(trainer.start())

    async def without_room(*words, **options):
        if refused:
            refused.pop()
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await real(*words, **options)

    monkeypatch.setattr(exchange_process.asyncio, "create_subprocess_exec", without_room)
    await kill_exchange()
    assert await within(hosts.restarted.get()) != before
    assert not refused


async def test_one_that_answers_between_its_deaths_is_started_again_each_time(hosts: Hosts) -> None:  # noqa: F811
    trainer = hosts.add("trainer")
    await within(trainer.start())
    for version in range(MOST_DEATHS):
        await kill_exchange()
        await within(hosts.restarted.get())
        await within(trainer.retire(version))
    (process,) = agents()
    assert process.status() != psutil.STATUS_ZOMBIE


async def test_one_that_dies_whatever_it_is_asked_refuses_every_order_from_then_on(
    hosts: Hosts,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange_process, "PAUSE_S", 0.0)
    failures = asyncio.Queue[RunError]()
    reader = hosts.add("reader", on_failure=failures.put_nowait)
    await within(reader.start())
    reader.command = ["/bin/false"]
    await kill_exchange()
    assert "failed 5 times in a row and answered nothing in between" in str(await within(failures.get()))
    for order in (reader.start(), reader.fetch(1, "f" * 32, ["tcp://127.0.0.1:1"]), reader.retire(1)):
        with pytest.raises(RunError, match=r"ended with code 1; .*5 times in a row"):
            await within(order)
    assert hosts.restarted.empty()


async def test_a_pull_that_nobody_waits_for_any_more_stops_no_other(
    hosts: Hosts,  # noqa: F811
    source: Source,  # noqa: F811
) -> None:
    trainer, reader, old = hosts.add("trainer"), hosts.add("reader"), hosts.store.find(0)
    given_up = asyncio.ensure_future(reader.fetch(0, old.digest, [source.endpoint]))
    await asyncio.to_thread(source.socket.poll)  # it is asked for
    given_up.cancel()
    await asyncio.to_thread(source.refuse, b"it is retired")
    endpoint, published = await within(trainer.start()), hosts.publish(1)
    fetched = await within(reader.fetch(1, published.digest, [endpoint]))
    assert is_same(published, fetched.location)


async def test_one_that_is_started_again_while_the_controller_is_gone_serves_on(tmp_path: Path) -> None:
    link = Link("tcp://127.0.0.1:1", "rollout")
    parts = {key: {} for key in ("rollout", "reward", "trainer")}
    settings = WorkerSettings(run_dir=str(tmp_path), seed=0, steps=1, model={"path": ""}, **parts)
    exchange = make_weights_exchange(tmp_path / "here", lambda: link, settings, is_writers=False)
    before = await within(exchange.start())
    await link.aclose()
    await kill_exchange()
    assert await within(exchange.retire(1)) == [1]
    assert await exchange.start() != before
    await exchange.close()


async def test_a_version_that_another_exchange_of_the_host_pulls_is_worth_another_try(
    hosts: Hosts,  # noqa: F811
    source: Source,  # noqa: F811
) -> None:
    """As that of a worker that was given up while it pulled: its exchange lives, and pulls on."""
    published = hosts.store.find(0)
    assert published is not None
    first, second = hosts.add("host"), hosts.add("host")
    fetching = asyncio.ensure_future(first.fetch(0, published.digest, [source.endpoint]))
    while len(source.asked) < WINDOW:
        await asyncio.to_thread(source.answer, only=())
    trying = asyncio.ensure_future(second.fetch(0, published.digest, [source.endpoint]))
    await asyncio.to_thread(source.answer)  # with the header
    with pytest.raises(SourcesUnreachable, match=r"Version 0 is being written to .* by another process"):
        await within(trying)
    for reader, frame in source.held_back:
        source.send(reader, frame)
    while len(source.asked) < CHUNKS:
        await asyncio.to_thread(source.answer)
    there = await within(fetching)
    assert (await within(second.fetch(0, published.digest, [source.endpoint]))).location == there.location


async def test_a_pull_that_nobody_waits_for_any_more_is_joined_by_the_next_one(
    hosts: Hosts,  # noqa: F811
    source: Source,  # noqa: F811
) -> None:
    """As after a cut link: the worker's next controller has it pull the same version."""
    published, reader = hosts.store.find(0), hosts.add("reader")
    assert published is not None
    left = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint]))
    await asyncio.to_thread(source.answer)  # with the header
    left.cancel()
    joined = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint]))
    while len(source.asked) < CHUNKS:
        await asyncio.to_thread(source.answer)
    assert is_same(published, (await within(joined)).location)
    await within(reader.retire(0))  # it answers still
    assert sorted(source.asked) == list(range(CHUNKS))  # each once


async def test_a_worker_that_cannot_keep_its_first_version_fails_itself_and_blames_no_source(
    hosts: Hosts,  # noqa: F811
    stand: Stand,
) -> None:
    endpoint, published = await within(hosts.add("trainer").start()), hosts.publish(1)
    process = await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (CHUNK_BYTES, CHUNK_BYTES))  # as a full disk
    stand.send(Pull(1, published.location, published.digest, (endpoint,)))
    failed, _ = await within(stand.expect(WorkerFailed))
    assert failed.reason.startswith("Version 1 of ")
    assert "could not be published to" in failed.reason
    assert (await exit_of(process))[0] == 1


async def test_a_worker_whose_host_has_no_room_any_more_tries_thrice_and_fails_itself(
    hosts: Hosts,  # noqa: F811
    stand: Stand,
) -> None:
    torch = pytest.importorskip("torch")
    from workers.weights.tensors import publish

    endpoint = await within(hosts.add("trainer").start())
    first, second = publish(hosts.store, 1, {"weight": torch.ones(4)}), hosts.publish(2)
    process = await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    stand.send(Pull(1, first.location, first.digest, (endpoint,)))
    await within(stand.expect(Pulled))
    for child in psutil.Process(process.pid).children(recursive=True):
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (CHUNK_BYTES, CHUNK_BYTES))  # as a full disk
    for _ in range(MOST_WITHOUT_ROOM - 1):
        stand.send(Pull(2, second.location, second.digest, (endpoint,)))
        await within(stand.expect(PullFailed))
    stand.send(Pull(2, second.location, second.digest, (endpoint,)))
    failed, _ = await within(stand.expect(WorkerFailed))
    assert failed.reason.startswith("Version 2 of ")
    assert (await exit_of(process))[0] == 1


async def test_a_worker_whose_exchange_dies_again_and_again_fails_in_words(stand: Stand) -> None:
    process = await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    stand.send(Serve())
    for _ in range(MOST_DEATHS):
        await stand.expect(Serving)
        await kill_exchange()
    failed, _ = await stand.expect(WorkerFailed)
    assert failed.reason.startswith("The process that exchanges policy versions ended with code -9")
    assert "the worker ends" in failed.reason
    assert (await exit_of(process))[0] == 1
