"""`launch.py CONFIG 2>&1 | tee log` and Ctrl-C: its reader is gone, and the run ends as well as ever."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_whole_runs import config

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_one_signal_saves_a_checkpoint_though_nobody_reads_what_is_said(tmp_path, number):
    settings = config(
        tmp_path,
        run={"steps": 100},
        rollout={"max_prompt_tokens": 8},
        logging={"console": "plain"},
        view={"start": "off"},
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings.as_written().model_dump(mode="json")))
    process = subprocess.Popen(
        [sys.executable, ROOT / "launch.py", str(file)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        lines = [""]
        while "step   1/100" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.stdout.close()
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ending"] == "stopped"
    saved = tmp_path / "run" / "checkpoints" / f"step_{summary['steps']}" / "model.safetensors"
    assert saved.exists()
