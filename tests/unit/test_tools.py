"""The linter, the formatter and the type checker find nothing: the hooks of .pre-commit-config.yaml."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
TOOLS = {hook["id"]: hook["entry"] for hook in HOOKS if " pytest " not in hook["entry"]}
SHOWN_LINES = 12
LIMIT_S = 600.0


def findings(entry: str, folder: Path) -> str:
    """What the hook prints in the folder; "" if it finds nothing. Its tool is that of this environment."""
    program, *words = entry.split()
    tool = Path(sys.executable).parent / Path(program).name
    if find_spec(tool.name) is None:
        pytest.skip(f"{tool.name} is missing here: pip install -e '.[lint]'. `launch.py test` installs it.")
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        [tool, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("tool", TOOLS)
def test_it_finds_nothing(tool):
    if found := findings(TOOLS[tool], ROOT):
        lines = found.strip().splitlines()
        shown = "\n".join([*lines[:SHOWN_LINES], *(["..."] if len(lines) > SHOWN_LINES else []), lines[-1]])
        pytest.fail(f"`{TOOLS[tool]}` fails; mend what it names and run it again.\n{shown}", pytrace=False)


@pytest.mark.parametrize(
    ("tool", "line"),
    [("ruff-check", "import os\n"), ("ruff-format", "x = {  }\n"), ("types", 'x: int = "one"\n')],
)
def test_it_sees_a_fault(tmp_path, tool, line):
    (tmp_path / "fault.py").write_text(line)
    assert "fault.py" in findings(TOOLS[tool], tmp_path)


def test_every_hook_runs_from_the_environment_on_the_whole_tree():
    for hook in HOOKS:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")
        assert not hook["pass_filenames"]
    assert [*TOOLS] == ["ruff-check", "ruff-format", "types"]


def test_what_the_compiler_says_of_a_package_of_others_fails_no_test(tmp_path):
    """uv compiles nothing when it installs, so that the first import does, and reasoning_gym's failed."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "of_others.py").write_text("ONE = 1\nprint(ONE is 1)\n")
    (tmp_path / "test_import.py").write_text("def test_import():\n    import of_others\n")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-n", "0", str(tmp_path / "test_import.py")], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
