"""Who may read what a run leaves behind: prompts, responses and keys are the owner's alone."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.durability.store import Store
from controller.host.log_file import OwnersLog
from controller.host.run_directory import RunDirectory
from protocol.wire.security import channel_key, make_keys
from workers.rollout.handover import Handover

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def run_directory(tmp_path, **run):
    return RunDirectory(Config.model_validate({"run": {"dir": str(tmp_path), "name": "run", **run}}))


def leave_everything(directory):
    """What a controller and its workers write there."""
    handler = OwnersLog(directory.logs / "controller.log")
    store = Store(directory.path / "run.db")
    with store.transaction():
        store.put_row(0, b"{}")
    words = Handover(directory.path / "handover" / "rollout-0")
    words.clear()
    directory.append_metrics({"step": 1})
    directory.append_evaluation({"step": 1})
    directory.write_status("{}")
    directory.write_summary({})
    found = {path.name: mode(path) for path in directory.path.rglob("*")}
    words._file.close()
    store.close()
    handler.close()
    directory.close()
    return found


def test_what_shows_prompts_and_responses_is_the_owners_and_figures_follow_the_umask(tmp_path):
    found = leave_everything(run_directory(tmp_path))
    own = {"run.db", "run.db-wal", "run.db-shm", "controller.log", "rollout-0"}
    figures = {"metrics.jsonl", "evaluations.jsonl", "status.json", "summary.json", "config.yaml"}
    assert {name: found[name] for name in own} == dict.fromkeys(own, 0o600)
    assert {name: found[name] for name in figures} == dict.fromkeys(figures, 0o644)
    assert mode(tmp_path / "run") == 0o755


def test_a_private_run_is_closed_altogether(tmp_path):
    directory = run_directory(tmp_path, private=True)
    found = leave_everything(directory)
    assert mode(directory.path) == 0o700
    assert found.pop("handover") == 0o755  # made by a worker, which narrows its umask first
    assert found.pop("logs") == 0o700
    assert set(found.values()) == {0o600}


def test_a_run_that_becomes_private_is_closed_with_all_that_it_has(tmp_path):
    leave_everything(run_directory(tmp_path))
    elsewhere = tmp_path / "of another run"
    elsewhere.touch()
    (tmp_path / "run" / "link").symlink_to(elsewhere)
    directory = run_directory(tmp_path, private=True)
    directory.go_on([], [], "auto")
    found = [path for path in directory.path.rglob("*") if not path.is_symlink()]
    assert all(mode(path) & 0o077 == 0 for path in [directory.path, *found])
    assert mode(elsewhere) == 0o644
    directory.close()


def test_what_an_earlier_release_left_open_is_closed_when_it_is_written_to(tmp_path):
    for name in ("run.db", "controller.log"):
        (tmp_path / name).touch(mode=0o644)
    Store(tmp_path / "run.db").close()
    OwnersLog(tmp_path / "controller.log").close()
    assert [mode(tmp_path / name) for name in ("run.db", "controller.log")] == [0o600, 0o600]


def test_keys_and_their_folder_are_the_owners(tmp_path):
    keys = tmp_path / "deep" / "keys"
    make_keys(keys, "node1", ("rollout",))
    channel_key(tmp_path / "weights.key")
    assert mode(tmp_path / "deep") == 0o755
    assert {mode(path) for path in (keys, keys / "workers")} == {0o700}
    files = [
        tmp_path / "weights.key",
        keys / "server.key",
        keys / "node1.key",
        keys / "workers" / "node1.json",
    ]
    assert {mode(path) for path in files} == {0o600}
    keys.chmod(0o755)
    make_keys(keys, "node2", ("rollout",))
    assert mode(keys) == 0o700


@pytest.mark.parametrize(("extra", "folder", "file"), [((), 0o755, 0o644), (("--private",), 0o700, 0o600)])
def test_a_model_that_is_made_follows_the_umask_unless_the_run_is_private(tmp_path, extra, folder, file):
    (tmp_path / "made.py").write_text(
        "import os\nfrom pathlib import Path\n\n"
        "def make(directory, *, seed, progress):\n    Path(directory, 'config.json').write_text('{}')\n"
        "    os.close(os.open(f'{directory}/weights', os.O_CREAT, 0o600))  # as safetensors makes its files\n"
    )
    command = [
        sys.executable, "-m", "workers.models.prepare", "--factory", f"{tmp_path}/made.py:make",
        "--directory", f"{tmp_path}/model", "--seed", "0", "--origin", "a factory", *extra,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert mode(tmp_path / "model") == folder
    assert [mode(tmp_path / "model" / name) for name in ("config.json", "weights")] == [file, file]
    assert mode(tmp_path / "model.json") == file
