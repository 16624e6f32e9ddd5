"""A reward function that takes too much memory: its process is killed, its call fails in words."""

import json

import pytest

from workers.reward.pool import RewardPool, ScoringFailed

FUNCTIONS = """
import os, subprocess, sys, time

def greedy(completion, amount):
    match amount:
        case "much":
            kept = bytearray(1 << 29)
        case "address space":
            import mmap
            kept = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return 1.0
        case "much in children":
            fill = "x = bytearray(120 << 20); import time; time.sleep(600)"
            command = [sys.executable, "-S", "-c", fill]
            kept = [subprocess.Popen(command, start_new_session=True) for _ in "abc"]
        case "much beside orphans that end all the time":
            subprocess.Popen(["sh", "-c", "while :; do (: &); done"])
            kept = bytearray(1 << 29)
        case _:
            return 1.0
    time.sleep(600)
"""


def request(amount: str) -> tuple:
    row = json.dumps({"prompt": "p", "amount": amount}).encode()
    return (0, row, "p", [1], ["c"], [[2]], ["stop"])


@pytest.mark.parametrize("amount", ["much", "much in children", "much beside orphans that end all the time"])
async def test_a_process_that_takes_too_much_memory_is_killed_by_name(tmp_path, amount):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    name = f"{tmp_path / 'functions.py'}:greedy"
    async with RewardPool(name, processes=1, timeout_s=120.0, memory_mb=256) as pool:
        await pool.start()
        assert await pool.score(request("little"), members=1) == [1.0]
        assert await pool.score(request("address space"), members=1) == [1.0], "only filled memory counts"
        with pytest.raises(ScoringFailed, match=r"more than `reward.memory_mb` = 256 MB"):
            await pool.score(request(amount), members=1)
        assert await pool.score(request("little"), members=1) == [1.0]
