"""Trackers beside a real run that is killed and goes on: each step has one value, and it is the run's own."""

import json
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_killed_runs import run_until
from test_whole_runs import config

from controller.view.exports.tensorboard import NAME
from tests.unit.controller.view.exports.test_trackers import wandb_records

pytestmark = pytest.mark.thorough
STEPS = 9
KILLS = ("step 1", "step 3", "step 4", "step 6", "step 8")  # checkpoints are at 4 and 8
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_trackers_of_killed_runs import settings
from tests.support.heard_program import say
from controller import Controller

async def main():
    async with Controller(settings(Path(sys.argv[1])), on_progress=lambda _, text: say(text)) as run:
        async for step in run.train():
            say(f"step {step.policy_version}")
    say("over")

asyncio.run(main())
"""


def trackers() -> tuple[str, ...]:
    return ("tensorboard", *(("wandb",) if find_spec("wandb") else ()))


def settings(run_dir: Path):
    return config(
        run_dir,
        run={"steps": STEPS},
        trainer={"checkpoint_steps": 4},
        rollout={"instances": 1, "progress_s": 0.05},
        logging={"trackers": trackers()},
    )


def fields(data: bytes):
    """(number, value) of a protobuf message; of lengths their bytes."""
    at = 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte, at = data[at], at + 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size


def in_tensorboard(run: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of its event file, read without the package."""
    data, found = (run / "tensorboard" / NAME).read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event, data = list(fields(data[12 : 12 + length])), data[16 + length :]
        step = dict(event).get(2, 0)
        for number, summary in event:
            for _, value in fields(summary) if number == 5 else ():
                parts = dict(fields(value))
                found.append((step, parts[1].decode(), struct.unpack("<f", parts[2])[0]))
    return found


def in_wandb(run: Path) -> list[tuple[int, str, float]]:
    """(step, key, value) of its offline run, of which there has to be one."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for record in map(Record.FromString, wandb_records(file.read_bytes())):
        for item in record.history.item if record.WhichOneof("record_type") == "history" else ():
            key = item.key or "/".join(item.nested_key)
            if not key.startswith("_"):
                found.append((record.history.step.num, key, json.loads(item.value_json)))
    return found


async def test_each_step_has_one_value_after_five_kills(tmp_path):
    for words in KILLS:
        await run_until(tmp_path, words, PROGRAM)
    await run_until(tmp_path, "over", PROGRAM)
    (run,) = [path for path in tmp_path.iterdir() if (path / "metrics.jsonl").exists()]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    readers = {"tensorboard": in_tensorboard, "wandb": in_wandb}
    for name in trackers():
        found = readers[name](run)
        for key in ("reward/mean", "loss"):
            told = [(step, value) for step, tag, value in found if tag == key]
            assert [step for step, _ in told] == list(range(1, STEPS + 1)), (name, key)
            assert [value for _, value in told] == pytest.approx([line[key] for line in lines], rel=1e-6)
    print(f"{len(KILLS)} kills, {STEPS} steps, one value each in {', '.join(trackers())}", file=sys.stderr)
