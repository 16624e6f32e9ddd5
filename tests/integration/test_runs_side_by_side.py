"""Several runs in one program: what each logs is in its own log, wherever it says it."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_stand import LIMIT_S

from controller import Controller
from controller.config.models import Config
from controller.controller import Step
from controller.host.log_file import log_to_file
from controller.host.resume import read_past
from protocol.errors import ConfigError

LOG = logging.getLogger("staleflow.test")


def config(folder: Path, name: str) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": name, "steps": 2},
            "rollout": {"instances": 0},
            "reward": {"workers": 0},
            "trainer": {"local": False},
        }
    )


class Prompts:
    """Rows that are read in a thread of the run; the source of the run that is to fail breaks."""

    def __init__(self, name: str, *, breaks: bool = False) -> None:
        self.name, self.breaks = name, breaks
        self.read = threading.Event()

    def __iter__(self) -> Iterator[dict[str, str]]:
        LOG.warning("read for %s", self.name)
        self.read.set()
        if self.breaks:
            raise OSError("the disk is gone")
        yield {"prompt": self.name}


def said(controller: Controller) -> str:
    return (controller.run_dir / "logs" / "controller.log").read_text()


async def test_two_controllers_of_one_task_log_what_is_theirs(tmp_path):
    rows, turned = Prompts("one"), asyncio.Event()

    def execute(command: object) -> None:
        LOG.warning("a turn of one")
        turned.set()

    breaking = Prompts("two", breaks=True)
    async with (
        Controller(config(tmp_path, "one"), prompts=rows) as one,
        Controller(config(tmp_path, "two"), prompts=breaking) as two,
    ):
        await asyncio.to_thread(rows.read.wait)
        LOG.warning("of the task")
        one._shell._execute = execute
        one.stop("It is stopped in the context of the second.")
        await turned.wait()
        with pytest.raises(ConfigError, match="the disk is gone"):
            await anext(two.train())
        one._shell.abandon("The test is over.")
    ours, others = said(one), said(two)
    assert all(words in ours for words in ("read for one", "a turn of one"))
    assert all(words in others for words in ("read for two", "of the task", "The run failed."))
    assert not any(words in ours for words in ("for two", "of the task", "The run failed."))
    assert not any(words in others for words in ("for one", "a turn of one"))


async def run(folder: Path, name: str, both: asyncio.Barrier) -> None:
    with contextlib.ExitStack() as stack:
        log_to_file(folder / name, level="info", stack=stack)
        await both.wait()
        LOG.info("task of %s", name)
        asyncio.get_running_loop().call_soon(LOG.info, "callback of %s", name)
        await asyncio.to_thread(LOG.info, "thread of %s", name)
        await both.wait()
        if name == "one":
            bare = threading.Thread(target=LOG.info, args=["of no run"])
            bare.start()
            bare.join()
        await both.wait()


async def test_tasks_callbacks_and_threads_of_a_run_are_in_its_log_and_in_no_other(tmp_path):
    both = asyncio.Barrier(2)
    await asyncio.gather(*(asyncio.create_task(run(tmp_path, name, both)) for name in ("one", "two")))
    for name in ("one", "two"):
        lines = [line.partition("staleflow.test: ")[2] for line in (tmp_path / name).read_text().splitlines()]
        assert sorted(lines) == sorted(
            [f"task of {name}", f"callback of {name}", f"thread of {name}", "of no run"]
        )


def test_each_log_has_its_own_level_and_stacks_go_to_one_that_is_open(tmp_path):
    with contextlib.ExitStack() as first:
        log_to_file(tmp_path / "first", level="debug", stack=first)
        with contextlib.ExitStack() as second:
            log_to_file(tmp_path / "second", level="warning", stack=second)
            threading.Thread(target=LOG.debug, args=["a detail"]).start()
        LOG.info("the second has ended")  # its context is nobody's now
        signal.raise_signal(signal.SIGUSR1)
    assert (tmp_path / "second").read_text() == ""
    assert "a detail" in (tmp_path / "first").read_text()
    assert "the second has ended" in (tmp_path / "first").read_text()
    assert "most recent call first" in (tmp_path / "first").read_text()


async def test_a_second_reader_of_the_steps_is_refused_and_a_later_one_goes_on(tmp_path):
    async with Controller(config(tmp_path, "run"), prompts=[{"prompt": "p"}]) as controller:
        controller._steps.put_nowait(Step(1, {}))
        controller._steps.put_nowait(Step(2, {}))
        async for step in controller.train():
            assert step.policy_version == 1
            break
        steps = controller.train()
        assert (await anext(steps)).policy_version == 2
        waiting = asyncio.create_task(anext(steps))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"Two tasks read train\(\) of one Controller at once"):
            await asyncio.wait_for(anext(controller.train()), LIMIT_S)
        waiting.cancel()
        await asyncio.wait([waiting])
        controller._steps.put_nowait(Step(3, {}))
        assert (await anext(controller.train())).policy_version == 3


async def test_a_reader_in_another_event_loop_is_told_that_no_step_comes_there(tmp_path):
    """It waited for ever: a step wakes only a task of the run's own loop."""
    async with Controller(config(tmp_path, "run"), prompts=Prompts("run")) as controller:

        async def read() -> None:
            await asyncio.wait_for(anext(controller.train()), LIMIT_S)

        with pytest.raises(RuntimeError, match="in another event loop than that in which"):
            await asyncio.to_thread(asyncio.run, read())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param(None, "The program stopped the run.", id="none"),
        pytest.param("", "The program stopped the run.", id="empty"),
        (ValueError("It is\nnan."), "ValueError: It is nan."),
        (KeyError(), "KeyError"),
        pytest.param("half of \ud83d", "half of \\ud83d", id="half"),
        (3, "3"),
    ],
)
async def test_whatever_reason_a_program_gives_its_run_stops_and_can_be_read(tmp_path, given, told):
    """None was written, then passed over, and the journal could not be read; an exception failed the run."""
    settings = config(tmp_path, "one")
    async with asyncio.timeout(LIMIT_S), Controller(settings, prompts=Prompts("one")) as controller:
        controller.stop(given)
        assert [step async for step in controller.train()] == []
    assert (controller.summary["ending"], controller.summary["reason"]) == ("stopped", told)
    assert read_past(controller.run_dir, settings) is not None


async def test_a_controller_that_is_being_entered_is_not_entered_beside_that(tmp_path):
    controller = Controller(config(tmp_path, "one"), prompts=Prompts("one"))

    async def enter() -> None:
        async with controller:
            pass

    failures = await asyncio.gather(enter(), enter(), return_exceptions=True)
    assert [type(one) for one in failures] == [type(None), RuntimeError]


async def test_another_thread_may_stop_a_run_and_so_may_a_later_call(tmp_path):
    async with (
        asyncio.timeout(LIMIT_S),
        Controller(config(tmp_path, "one"), prompts=Prompts("one")) as controller,
    ):
        await asyncio.to_thread(controller.stop, "It was stopped in another thread.")
        assert [step async for step in controller.train()] == []
    assert controller.summary["ending"] == "stopped"
    assert "It was stopped in another thread." in controller.summary["reason"]
    await asyncio.to_thread(controller.stop, "It is over.")
