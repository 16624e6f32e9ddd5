"""Equal commands have equal fingerprints, and nothing else has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.core import commands
from controller.core.commands import Send
from controller.core.state.kept_samples import KeptGroup
from controller.durability.fingerprint import NOTHING, SIZE_BYTES, fingerprint, is_of
from protocol.messages import Close, Retire, Route, SaveCheckpoint, Segment

ROOT = Path(__file__).resolve().parents[4]
ALL = [
    Send("01ab", Route(1, 2, 3, 4, 5, (Segment(1, 2, 3),))),
    commands.Spawn("rollout-0", "rollout", 0.5),
    commands.ReadPrompts(3),
    commands.ReadHeldOut(1 << 40),
    commands.ReportEvaluation({"step": 1}),
    commands.DropPayload((1, 2)),
    commands.Forget("01ab", "rollout-0"),
    commands.ReportStep({"step": 1, "loss": 1 / 3, "hist": {0: 1}, "none": None}),
    commands.Warn("text"),
    commands.Progress(0.5, "text"),
    commands.KeepSamples(3, (KeptGroup(7, "oldest", (), ()),)),
    commands.Finish(True, "reason"),
]


def test_every_kind_of_command_has_one_of_its_own():
    found = {fingerprint([command]) for command in ALL}
    assert len(found) == len(ALL)
    assert {len(digest) for digest in found} == {SIZE_BYTES}
    assert {type(command) for command in ALL} == set(commands.Command.__args__)
    assert fingerprint([]) == NOTHING


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([ALL[0], ALL[1]], [ALL[1], ALL[0]]),
        ([Send("a", Retire(3))], [Send("a", SaveCheckpoint(3))]),
        ([Send("a", Retire(3))], [Send("b", Retire(3))]),
        ([Send("a", Close("", True))], [Send("a", Close("", False))]),
        ([commands.Progress(0.1 + 0.2, "")], [commands.Progress(0.3, "")]),
        ([commands.ReportStep({"a": 1, "b": 2})], [commands.ReportStep({"b": 2, "a": 1})]),
        ([commands.ReportStep({"a": 1})], [commands.ReportStep({"a": 1.0})]),
    ],
    ids=["order", "message", "peer", "field", "last bit of a float", "order of keys", "type"],
)
def test_what_differs_at_all_has_another(one, other):
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("known", "is_it"), [({"a": 1, "device/changes": 4.0}, True), ({"a": 1.0, "device/changes": 4}, False)]
)
def test_the_count_of_an_older_compiled_core_is_known_and_no_other_number(known, is_it):
    wanted = [Send("a", Retire(3)), commands.ReportStep({"a": 1, "device/changes": 4})]
    before = fingerprint([wanted[0], commands.ReportStep(known)])
    assert is_of(before, wanted) == is_it
    assert is_of(fingerprint(wanted), wanted)
    assert is_of(None, wanted)
    assert not is_of(NOTHING, wanted)


def test_another_process_with_another_hash_seed_finds_the_same():
    code = "from tests.unit.controller.durability.test_fingerprint import *; print(fingerprint(ALL).hex())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(ALL).hex()
