"""The conformance kit on engines of one's own: it judges what they do, not their words, each fault once."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.cli.main import main
from protocol.errors import ConfigError
from workers.engines.interface import check_new

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "conformance"
ENGINES = '''
"""Engines without a model, over the kit's simulated one."""

import sys

sys.path.insert(0, {kit!r})

from simulated_subject import make_simulated


def make(settings, folder, kind=None):
    engine = make_simulated(settings, folder, prompt_tokens=40, vocabulary=48, context=128)
    return engine if kind is None else kind(engine)


class Wrapped:
    """Everything as the simulated engine has it."""

    def __init__(self, engine):
        self.__dict__["engine"] = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def __setattr__(self, name, value):
        setattr(self.engine, name, value)


class OtherWords(Wrapped):
    def add(self, generation):
        try:
            self.engine.add(generation)
        except ValueError:
            raise ValueError("no") from None

    def load_weights(self, policy_version, tensors):
        self.engine.load_weights(policy_version, {{}})


class Deaf(OtherWords):
    def abort(self, keys):
        """What is aborted goes on, and leaves the engine busy."""


def deaf(settings, folder):
    return make(settings, folder, Deaf)

'''
NEED_ABORTS = {
    "test_aborted_generations_are_forgotten_and_the_others_go_on_unharmed",
    "test_an_abort_makes_room_for_those_that_wait",
    "test_an_ended_or_aborted_key_may_come_again",
    "test_interrupted_at_random_points_a_response_equals_the_uninterrupted",
}


@pytest.fixture
def engines(tmp_path):
    file = tmp_path / "engines.py"
    file.write_text(ENGINES.format(kit=str(KIT)))
    return file


def kit(spec, *arguments):
    """(exit code, output) of the kit on an engine."""
    command = [sys.executable, "launch.py", "conformance", spec, "--without-model", *arguments]
    environment = os.environ | {"STALEFLOW_NO_INSTALL": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_words_of_ones_own_pass_and_a_fault_fails_what_it_breaks_and_nothing_else(engines):
    code, output = kit(f"{engines}:deaf", "--tb=line")
    failed = set(re.findall(r"^FAILED \S+::(\w+)", output, re.MULTILINE))
    assert code == 1, output
    assert failed, output
    assert failed <= NEED_ABORTS, output


class Unborn:
    """An engine before its first weights, and the kit's subject of it."""

    name, policy_version, capacity, kv_tokens = "mine.py:make", -1, 4, 100

    def engine(self):
        check_new(self, self.name)


def test_an_engine_that_begins_at_version_minus_one_is_refused_in_one_sentence(monkeypatch):
    words = "policy_version -1; expected an int of at least 0: before the first load_weights it is 0"
    with pytest.raises(ConfigError, match=words):
        Unborn().engine()
    monkeypatch.syspath_prepend(KIT)
    found = importlib.util.spec_from_file_location("kit_conftest", KIT / "conftest.py")
    conftest = importlib.util.module_from_spec(found)
    found.loader.exec_module(conftest)
    with pytest.raises(pytest.exit.Exception, match=f"mine.py:make makes no engine: ConfigError: .*{words}"):
        conftest._make_once(Unborn())


@pytest.mark.parametrize(
    "wrong", [{"policy_version": 0.0}, {"policy_version": None}, {"capacity": 0}, {"kv_tokens": -1}]
)
def test_what_no_engine_can_be_is_refused_by_attribute_and_value(wrong):
    engine = SimpleNamespace(**{"policy_version": 0, "capacity": 1, "kv_tokens": 0} | wrong)
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"mine.py:make made has {name} {value!r}; expected an int"):
        check_new(engine, "mine.py:make")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nofile.py", "is not an import path"),
        ("nofile.py:make", "there is no file nofile.py"),
        ("vlm", "Or name one of torch, vllm"),
    ],
)
def test_an_engine_that_cannot_be_found_is_one_sentence(spec, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["conformance", spec]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1
