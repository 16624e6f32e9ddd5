"""A worker that is told to leave before it has begun, or that fails."""

import argparse
import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import NotFinite, PluginError, RunError
from protocol.messages import Detach
from workers.host import serve as served
from workers.link.link import Link

ROOT = Path(__file__).resolve().parents[4]
OPTIONS = {"overrides": [], "name": "node1", "key": None, "parent": None, "address": "inproc://nobody"}
SETTINGS = argparse.Namespace(is_private=False, run_dir="/runs/a")


@pytest.mark.parametrize(
    ("kind", "is_final"), [(PluginError, True), (NotFinite, True), (RunError, False), (OSError, False)]
)
async def test_one_that_fails_says_whether_its_next_life_would_fail_alike(
    kind, is_final, monkeypatch, caplog
):
    said = []

    class Broken:
        async def run(self, link: Link) -> None:
            raise kind("trainer.loss: no") from ValueError("many\nlines")

        def drain(self) -> None: ...

    async def attach(*given: object, **keys: object) -> Link:
        link = Link("inproc://nobody", "trainer")
        link.settings = SETTINGS
        link.send = lambda message, *frames: said.append(message)
        return link

    async def find(settings: object, link: Link, role: str) -> str:
        return ""

    async def flush(link: Link, limit_s: float) -> bool:
        return True

    monkeypatch.setattr(Link, "attach", attach)
    monkeypatch.setattr(Link, "flush", flush)
    monkeypatch.setattr(served, "find_model", find)
    monkeypatch.setattr(served, "_make_worker", lambda role, settings, directory: Broken())
    monkeypatch.setattr(served, "Overrides", lambda role, overrides: lambda settings: settings)
    assert await served.serve(argparse.Namespace(role="trainer", **OPTIONS)) == 1
    (failed,) = said
    assert failed.is_final == is_final
    assert "trainer.loss: no" in failed.reason
    assert "many" not in failed.reason
    is_known = kind in (RunError, NotFinite)
    assert ("many\nlines" in caplog.text) == (not is_known), "the log has the whole of it"


async def test_one_that_an_operator_drains_while_it_fetches_the_model_leaves(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    said = []

    async def attach(*given: object, **keys: object) -> Link:
        link = Link("inproc://nobody", "reward")
        link.settings = SETTINGS
        link.send = lambda message, *frames: said.append(message)
        return link

    async def fetch(settings: object, link: Link, role: str) -> str:
        link.on_drain()  # as the link does where the controller says it
        await asyncio.Event().wait()
        return ""

    async def flush(link: Link, limit_s: float) -> bool:
        return True

    monkeypatch.setattr(Link, "attach", attach)
    monkeypatch.setattr(Link, "flush", flush)
    monkeypatch.setattr(served, "find_model", fetch)
    monkeypatch.setattr(served, "Overrides", lambda role, overrides: lambda settings: settings)
    task = asyncio.create_task(served.serve(argparse.Namespace(role="reward", **OPTIONS)))
    assert await asyncio.wait_for(task, 60.0) == 0
    assert "Leaving before the work began: the operator asks for it." in caplog.text
    assert said == [Detach("The worker was told to leave by the operator.")]


async def test_one_whose_engine_fails_while_it_looks_for_a_controller_says_why_in_its_log(
    monkeypatch, caplog
):
    link = Link("inproc://nobody", "rollout")
    link.settings = argparse.Namespace(reattach_s=300.0, run_dir="/runs/a")

    async def attach(*given: object, **keys: object) -> Link:
        return link

    async def work(host: served._Host, link: Link) -> None:
        host._worker = Orphaned()

    class Orphaned:
        async def go_on(self, found: asyncio.Task[Link]) -> None:
            raise RunError("The engine hangs.")

        def handover(self) -> None: ...

    monkeypatch.setattr(Link, "attach", attach)
    monkeypatch.setattr(served._Host, "work", work)
    assert await served.serve(argparse.Namespace(role="rollout", **OPTIONS)) == 1
    assert [record.exc_info for record in caplog.records if record.message == "The engine hangs."] == [None]
    await link.aclose()


def test_one_whose_printing_nobody_reads_any_more_goes_on(monkeypatch, caplog):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        for _ in range(2):  # it attaches, and attaches again
            served._say_attached(argparse.Namespace(role="rollout", **OPTIONS), "node1", SETTINGS)
    assert caplog.messages == ["What this worker prints is lost from now on: Broken pipe."]


HUNG_UP = """
import asyncio, signal, sys
from tests.support.hanging_up import hang_up_twice
from workers.host.stop import Stop
signal.signal(signal.SIGHUP, signal.Handlers[sys.argv[1]])
async def work():
    stop, drains = Stop(), []
    stop.use(lambda: drains.append(1))
    await hang_up_twice()
    return 10 + len(drains)
sys.exit(asyncio.run(work()))
"""


@pytest.mark.parametrize(("before", "drains"), [("SIG_DFL", 1), ("SIG_IGN", 0)])
def test_a_closed_terminal_drains_a_worker_once_and_under_nohup_it_works_on(before, drains):
    command = [sys.executable, "-c", HUNG_UP, before]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 10 + drains
