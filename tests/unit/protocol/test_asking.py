"""A question to a module in a process of its own: what it prints, breaks or never ends stays there."""

import sys

import pytest

from protocol.asking import ask
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


def test_a_module_may_prepare_its_process(modules):
    code = (
        "READY = []\ndef prepare_process():\n    READY.append(1)\ndef answer(question):\n    return READY\n"
    )
    assert ask(modules("prepared_one", code), None, limit_s=LIMIT_S) == [1]
