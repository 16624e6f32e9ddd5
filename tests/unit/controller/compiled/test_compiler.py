"""The process that compiles: a type that is wrong ends it, with the line that is wrong."""

import subprocess
import sys

from controller.compiled import compiler


def test_a_wrong_type_is_named_and_nothing_is_made(tmp_path):
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    (tmp_path / "wrong.py").write_text('def count() -> int:\n    return "one"\n')
    command = [sys.executable, "-P", compiler.__file__, "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "wrong.py:2: error: Incompatible return value type" in done.stdout + done.stderr
    assert {one.name for one in tmp_path.iterdir()} <= {"mypy.ini", "wrong.py", ".mypy_cache", "build"}
