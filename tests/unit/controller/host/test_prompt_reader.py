"""Prompts are read one request after the other, and their groups are numbered on."""

import asyncio
import threading

import pytest

from controller.config.models import Config
from controller.core.commands import ReadPrompts
from controller.core.events import PromptsRead
from controller.data.sources import Sources
from controller.host import daemon_thread
from controller.host.daemon_thread import in_daemon_thread
from controller.host.prompt_reader import PromptReader, identity
from controller.simulation import Simulation
from strategies.schedules import SCHEDULES


async def read(reader, *, events):
    """The next events that the reader posts, with their rows."""
    heard, notes, done = [], [], asyncio.Event()

    def post(event, rows):
        heard.append((event, rows))
        if len(heard) == events:
            done.set()

    task = asyncio.create_task(reader.run(post, note=notes.append))
    await asyncio.wait_for(done.wait(), 300)
    task.cancel()
    return heard


def rows(count):
    return ({"prompt": str(number)} for number in range(count))


async def test_groups_are_numbered_in_the_order_of_the_data():
    reader = await PromptReader.open(Config(), rows(3), known=None, on_refused=print)
    reader.ask_for(ReadPrompts(2))
    reader.ask_for(ReadPrompts(2))
    (first, two), (second, one) = await read(reader, events=2)
    prompts = [tuple(map(identity, texts)) for texts in (two, one)]
    assert (first, second) == (
        PromptsRead(0, 2, False, (), prompts[0]),
        PromptsRead(2, 1, True, (), prompts[1]),
    )
    assert (len(two), len(one)) == (2, 1)


async def test_equal_rows_have_one_identity_in_every_epoch():
    config = Config.model_validate({"data": {"epochs": 2}})
    reader = await PromptReader.open(config, [*rows(3)], known=None, on_refused=print)
    reader.ask_for(ReadPrompts(6))
    ((event, _),) = await read(reader, events=1)
    assert event.prompts[:3] == event.prompts[3:]
    assert len({*event.prompts}) == 3
    assert all(0 < prompt < 1 << 56 for prompt in event.prompts)


async def test_rows_that_a_run_has_read_before_are_passed_over_in_a_thread_that_delays_no_exit():
    are_daemons = []

    def watched():
        for row in rows(3):
            are_daemons.append(threading.current_thread().daemon)
            yield row

    core = Simulation(Config(), seed=0).core
    core.state.mixture.on_read(2, ())
    reader = await PromptReader.open(Config(), watched(), known=None, on_refused=print)
    await reader.go_on(core, {}, cursors=None)
    assert are_daemons == [True, True]


@pytest.mark.parametrize("kind", ["tables", "tables without their positions", "functions"])
async def test_sources_that_had_ended_before_a_run_went_on_are_at_their_end(tmp_path, kind):
    """The core reads none of them again, so that nothing else would tell it that the data has ended."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p"}\n' * 2)
    (tmp_path / "made.py").write_text("def rows(seed):\n    return [{'prompt': 'p'}] * 2\n")
    path = str(tmp_path / ("made.py:rows" if kind == "functions" else "rows.jsonl"))
    config = Config.model_validate({"data": {"epochs": 2, "sources": [{"path": path}, {"path": path}]}})
    before, core = Sources(config), Simulation(config, seed=0).core
    read, of = before.read(9, core.state.mixture.choose(9, 0, SCHEDULES["constant"]))
    core.state.mixture.on_read(len(read), of)
    (alive,) = [number for number, one in enumerate(core.state.mixture.sources) if not one.has_ended]
    after = Sources(config, known=before.fingerprints)
    cursors = None if kind == "tables without their positions" else before.cursors
    await PromptReader(after).go_on(core, {}, cursors=cursors)
    assert not after.is_end
    assert after.read(1, (alive,)) == ([], ())
    assert after.is_end


async def test_a_call_for_which_the_machine_has_no_thread_now_is_made_once_there_is_room(monkeypatch, caplog):
    started, refusals = threading.Thread.start, [1, 1]

    def start(thread):
        if refusals:
            refusals.pop()
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(daemon_thread, "RETRY_S", 0)
    assert await in_daemon_thread(lambda: 7) == 7
    (told,) = caplog.messages
    assert told.startswith("can't start new thread: it is tried again until the machine has room for one.")


async def test_a_call_that_raises_stop_iteration_does_not_leave_its_caller_waiting():
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await asyncio.wait_for(in_daemon_thread(lambda: next(iter(()))), 300)
