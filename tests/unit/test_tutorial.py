"""docs/tutorial.md: what it has people type is data, a reward and a configuration that `check` finds good."""

import re
import subprocess
from pathlib import Path

from controller import load_config
from controller.check.problems import check

ROOT = Path(__file__).resolve().parents[2]
TYPED = ("next.jsonl", "cat > rewards.py", "cat > mine.yaml")
"""Blocks that only write files; `check`, training and the model are left out."""


def test_what_is_typed_is_a_good_run(tmp_path, monkeypatch):
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
    wanted = [next(block for block in blocks if words in block) for words in TYPED]
    script = re.sub(r"^python3 .*$", "", "".join(wanted), flags=re.MULTILINE)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    config = load_config("mine.yaml")
    errors = [one for one in check(config) if one.level == "error" and not one.field.startswith("model")]
    assert errors == []
    assert [len(Path(one.path).read_text().splitlines()) for one in config.data.sources] == [10, 10]
    assert config.trainer.lora.rank == 8
