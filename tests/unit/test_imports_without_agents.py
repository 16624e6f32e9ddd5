"""A run without an agent imports nothing that only agents need."""

import subprocess
import sys

NEVER = ("starlette", "uvicorn", "openai", "renderers", "verifiers", "openenv", "websockets", "workers.agent")
CODE = f"""
import sys
import controller.cli.main, controller.controller, controller.host.shell
import workers.reward.worker, workers.link.link
from controller.config.load import load_config
load_config("examples/quickstart.yaml")
print(*sorted(name for name in sys.modules if name.startswith({NEVER!r})))
"""


def test_a_controller_and_a_reward_worker_do_without():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr
