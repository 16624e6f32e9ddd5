"""What stands still in a real run is named with owner and remedy: by status and page, console, webhook."""

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from local_workers import local_workers
from test_whole_runs import config, left_behind

from controller import Controller
from tests.tasks.stalling import GATE

STALLING = Path(__file__).parents[1] / "tasks" / "stalling.py"
ENGINE = Path(__file__).parent / "stalling_engine.py"
BEFORE, STEPS = 3, 60  # as many as use up what has been read ahead
LIMIT_S = 300


@contextmanager
def webhook():
    """Its address, and an event loop's queue of what it is told."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            loop.call_soon_threadsafe(told.put_nowait, json.loads(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", told
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def stalled(part, gate):
    """The part of the run stands still meanwhile."""
    if part == "trainer":
        (trainer,) = local_workers("trainer")
        trainer.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            trainer.send_signal(signal.SIGCONT)
        return
    path = Path(f"{gate}.{part}")
    os.mkfifo(path)
    try:
        yield
    finally:
        opened = os.open(path, os.O_RDWR)
        path.unlink()
        os.close(opened)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "owner", "what", "remedy"),
    [
        ("reward", "reward-0", "its rewards", "see logs/reward-0.log"),
        ("engine", "rollout-0", "responses that run on", "see logs/rollout-0.log"),
        ("trainer", "trainer", "the trainer to finish version", "is started again if it ends or is silent"),
        ("prompts", "the next step", "rows of the data", "the source of prompts"),
    ],
)
async def test_what_stands_still_is_named_with_owner_and_remedy(
    part, owner, what, remedy, tmp_path, monkeypatch
):
    gate = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(gate))
    said = []
    with webhook() as (url, told):
        run = config(
            tmp_path,
            run={"steps": STEPS},
            data={"path": f"{STALLING}:prompts"},
            reward={"function": f"{STALLING}:reward", "timeout_s": 3600.0},
            rollout={"engine": f"{ENGINE}:make"},
            controller={"lease_s": 600.0},
            notify={"url": url, "events": ("stuck",)},
        )
        async with Controller(run, on_warning=said.append) as controller:
            steps = controller.train()
            async for step in steps:
                if step.policy_version == BEFORE:
                    break
            began = time.monotonic()
            with stalled(part, gate):
                going_on = asyncio.ensure_future(anext(steps))
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        news = await told.get()
                        if owner in news["message"]:
                            break
                status = json.loads((tmp_path / "run" / "status.json").read_text())
                print(f"{time.monotonic() - began:.1f} s: {news['message']}")
                assert what in news["message"]
                assert remedy in news["message"]
                assert any(what in text and remedy in text for text in said), said
                assert any(owner in wait["owner"] + wait["then"] for wait in status["waits"]), status["waits"]
            await going_on
            async for _ in steps:
                pass
    assert left_behind() == []
