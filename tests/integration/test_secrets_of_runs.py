"""A secret from the environment reaches the workers of a run, and no file that it leaves."""

from pathlib import Path

import pytest

from controller import Controller, load_config

TASK = Path(__file__).parents[1] / "tasks" / "even_digits.py"
ENGINE = Path(__file__).parent / "telling_engine.py"
SECRET = "a-secret-that-no-file-has"
CONFIG = f"""
run: {{dir: '${{RUNS}}', name: run, steps: 1}}
model: {{factory: '{TASK}:make_model'}}
data: {{path: '{TASK}:prompts'}}
reward: {{function: '{TASK}:reward'}}
rollout:
  engine: '{ENGINE}:make'
  instances: 1
  group_size: 2
  max_response_tokens: 4
  vllm: {{engine_args: {{token: '${{SECRET}}'}}}}
trainer: {{batch_groups: 2, checkpoint_steps: 1}}
logging: {{console: quiet, level: debug}}
"""


@pytest.mark.costly
async def test_a_secret_reaches_the_workers_and_no_file_of_the_run(tmp_path, monkeypatch):
    file, told, runs = tmp_path / "run.yaml", tmp_path / "told", tmp_path / "runs"
    file.write_text(CONFIG)
    for name, value in {"SECRET": SECRET, "TOLD": str(told), "RUNS": str(runs)}.items():
        monkeypatch.setenv(name, value)
    for steps in (1, 6):  # the second takes the run up again, and needs more than what is there
        told.unlink(missing_ok=True)
        async with Controller(load_config(str(file), [f"run.steps={steps}"])) as controller:
            async for step in controller.train():
                assert SECRET not in str(step.metrics)
        assert controller.summary["steps"] == steps
        assert told.read_text() == SECRET
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert (runs / "run" / "run.db") in files
    assert "${SECRET}" in (runs / "run" / "config.yaml").read_text()
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
