"""A question to a module in a process of its own: what it prints, breaks or never ends stays there."""

import os
import select
import subprocess
import sys

import pytest

from protocol.asking import ROOT, ask
from protocol.errors import Unanswered

LIMIT_S = 60


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules of ours on sys.path, which the process gets."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str) -> str:
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


def test_the_answer_comes_back_whatever_is_printed(modules):
    code = "print('loud')\ndef answer(question):\n    print(question)\n    return {'seen': question}\n"
    assert ask(modules("loud_one", code), [1, "two"], limit_s=LIMIT_S) == {"seen": [1, "two"]}
    assert "loud_one" not in sys.modules


def test_a_process_that_ends_is_told_with_what_it_printed(modules):
    code = "import os, sys\ndef answer(question):\n    print('last words', flush=True)\n    os._exit(7)\n"
    with pytest.raises(Unanswered, match="ended with exit code 7:\nlast words"):
        ask(modules("ending_one", code), None, limit_s=LIMIT_S)


def test_an_exception_is_told(modules):
    with pytest.raises(Unanswered, match=r"exit code 1:[\s\S]*ZeroDivisionError"):
        ask(modules("failing_one", "def answer(question):\n    1 / 0\n"), None, limit_s=LIMIT_S)


def test_a_process_that_does_not_end_is_killed_with_what_it_started(modules):
    code = "import subprocess\ndef answer(question):\n    subprocess.run(['sleep', '600'])\n"
    with pytest.raises(Unanswered, match=r"took longer than 0\.5 s"):
        ask(modules("hanging_one", code), None, limit_s=0.5)


def test_what_a_module_leaves_running_delays_no_answer_and_is_ended(modules, tmp_path):
    os.mkfifo(tmp_path / "held")
    descriptor = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)  # it hears who leaves from now on
    code = f"""
import subprocess
def answer(question):
    subprocess.Popen(["sh", "-c", "exec 3<>{tmp_path / "held"}; echo begun >&3; exec sleep 600"])
    return open({str(tmp_path / "held")!r}).readline()
"""
    assert ask(modules("leaving_one", code), None, limit_s=LIMIT_S) == "begun\n"
    poll = select.poll()
    poll.register(descriptor, 0)
    assert poll.poll(1000 * LIMIT_S), "it hangs up once nobody has it open for writing"
    os.close(descriptor)


def test_a_module_may_prepare_its_process(modules):
    code = (
        "READY = []\ndef prepare_process():\n    READY.append(1)\ndef answer(question):\n    return READY\n"
    )
    assert ask(modules("prepared_one", code), None, limit_s=LIMIT_S) == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are tied to one another by pidfd")
def test_a_process_ends_with_who_asked_however_that_ends(modules, tmp_path):
    code = "import os, subprocess\ndef answer(question):\n"
    code += "    child = subprocess.Popen(['sleep', '600'])\n"
    code += "    with open(question, 'w') as said: said.write(f'{os.getpid()} {child.pid}')\n"
    code += "    child.wait()\n"
    os.mkfifo(fifo := tmp_path / "fifo")
    asking = (
        f"from protocol.asking import ask; ask({modules('patient_one', code)!r}, {str(fifo)!r}, limit_s=600)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    asker = subprocess.Popen([sys.executable, "-c", asking], env=environment)
    ends = [os.pidfd_open(int(pid)) for pid in fifo.read_text().split()]
    asker.kill()
    asker.wait()
    for end in ends:
        assert select.select([end], [], [], LIMIT_S)[0], "it goes on"
        os.close(end)


def test_a_descriptor_that_is_handed_on_is_the_process_s_too(modules):
    code = "import os\ndef answer(question):\n    os.write(question, b'on the way')\n    return 1\n"
    readable, writable = os.pipe()
    try:
        module = modules("writing_one", code)
        assert ask(module, writable, limit_s=LIMIT_S, inherited=(writable,)) == 1
        assert os.read(readable, 100) == b"on the way"
    finally:
        os.close(readable)
        os.close(writable)
