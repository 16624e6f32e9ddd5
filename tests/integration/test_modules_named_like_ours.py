"""A module of the user's may have the name of a folder in our packages, of one beside them, or of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.check.source import look_up
from protocol.errors import ConfigError
from protocol.importing import load_object, python_path, python_path_of_users
from workers.agent.kinds.command import from_command
from workers.agent.policy import AgentPolicy
from workers.reward.pool import RewardPool

ROOT = Path(__file__).resolve().parents[2]
ROOM = (0, b"{}", "?", [0], ["a"], [[1]], ["stop"])
MINE = "def worth(completion):\n    return 0.5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's, with his own `workers`; where the program was started."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text(MINE)
    (tmp_path / "workers" / "tools.py").write_text(MINE)
    return tmp_path


def test_processes_look_for_our_packages_beside_them_not_in_them():
    assert Path(python_path().split(os.pathsep)[0]) == ROOT


async def test_a_reward_of_modules_named_engines_and_reward(tmp_path):
    (tmp_path / "engines.py").write_text("WORTH = 3.0\n")
    (tmp_path / "reward.py").write_text(
        "from engines import WORTH\n\ndef score(completion):\n    return WORTH\n"
    )
    pool = RewardPool("reward:score", processes=1, timeout_s=60.0, import_paths=[str(tmp_path)])
    async with pool:
        await pool.start()
        assert await pool.score(ROOM, members=1) == [3.0]


async def test_a_module_of_the_users_comes_before_one_that_lies_beside_our_packages(tmp_path):
    """As every installed package does, where we are installed too; in a checkout `launch` does."""
    (tmp_path / "launch.py").write_text("def score(completion):\n    return 3.0\n")
    pool = RewardPool("launch:score", processes=1, timeout_s=60.0, import_paths=[str(tmp_path)])
    async with pool:
        await pool.start()
        assert await pool.score(ROOM, members=1) == [3.0]


@pytest.mark.parametrize(
    "source",
    [
        "from workers.tools import worth as score\n",
        "import workers\n\ndef score(completion):\n    return workers.worth(completion)\n",
        "def score(completion):\n    from workers.tools import worth\n    return worth(completion)\n",
    ],
)
async def test_a_reward_that_imports_a_package_of_the_users_with_our_name_is_refused(folder, source):
    """Else each of its calls would fail, or a name of ours would be taken for one of his."""
    (folder / "mine.py").write_text(source)
    both = f"`workers` is {ROOT / 'workers'}, which hides {folder / 'workers'}. Rename yours"
    pool = RewardPool("mine.py:score", processes=1, timeout_s=60.0, import_paths=[str(folder)])
    async with pool:
        with pytest.raises(ExceptionGroup) as refused:
            await pool.start()
    assert both in str(refused.value.exceptions[0])
    assert both in str(look_up("mine.py:score"))


def test_so_is_a_function_of_such_a_package(folder):
    both = f"`workers` is {ROOT / 'workers'}, which hides {folder / 'workers'}. Rename yours"
    for spec in ("workers:worth", "workers.tools:worth"):
        with pytest.raises(ConfigError) as refused:
            load_object(spec)
        assert both in str(refused.value)
        assert both in str(look_up(spec))


def test_what_the_users_modules_do_not_import_is_no_matter(folder):
    (folder / "apart.py").write_text("from protocol.errors import ConfigError\n")
    assert load_object("apart.py:ConfigError") is ConfigError
    assert not isinstance(look_up("apart.py:ConfigError"), str)


async def test_a_program_of_the_users_imports_his_packages_not_ours(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", python_path(str(folder)))
    (folder / "scripts").mkdir()
    (folder / "scripts" / "agent.py").write_text(
        "from workers.tools import worth\nprint('{\"reward\":', worth(''), '}')\n"
    )
    play = from_command([sys.executable, "scripts/agent.py"])
    assert await play(AgentPolicy.__new__(Told), {}) == 0.5


class Told(AgentPolicy):
    """A policy of which a program needs no more."""

    environment = {}  # noqa: RUF012
    seed = 0


def test_where_we_are_installed_another_python_of_the_users_gets_none_of_our_packages(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr("protocol.importing.ROOT", Path("/env/lib/python3.11/site-packages"))
    monkeypatch.setenv("PYTHONPATH", python_path("/mine"))
    assert python_path_of_users() == "/mine"


@pytest.mark.parametrize("words", [["launch.py"], ["-m", "launch"]])
def test_launch_py_starts_in_a_folder_with_packages_named_like_ours(tmp_path, words):
    """`python -m launch` is how one starts what pip has installed; Python looks in the folder first."""
    for name in ("controller", "install", "protocol", "strategies", "workers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('of others')\n")
    words = [str(ROOT / "launch.py")] if words == ["launch.py"] else words
    environment = os.environ | {"PYTHONPATH": str(ROOT), "STALEFLOW_NO_INSTALL": "1"}
    done = subprocess.run(
        [sys.executable, *words, "keygen", "keys"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    attach = [sys.executable, *words, "attach", "no-such-run", "--role", "reward"]
    done = subprocess.run(attach, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "no-such-run" in done.stderr
    assert "of others" not in done.stderr


def test_libraries_start_ours_where_the_user_has_such_a_package_and_else_look_as_his_programs_do(folder):
    program = (
        "import json, os, sys\nfrom protocol.importing import put_users_first\n"
        "put_users_first(if_safe=True)\n"
        "print(json.dumps([sys.path, os.environ['PYTHONPATH'].split(os.pathsep)]))\n"
    )

    def places(cwd):
        environment = os.environ | {"PYTHONPATH": python_path(str(folder / "more"))}
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], cwd=cwd, env=environment, capture_output=True, text=True
        )
        return json.loads(done.stdout)

    path, told = places(folder)
    assert (path[0], told[0]) == (str(ROOT), str(ROOT))
    path, told = places("/")
    assert path.index(str(folder / "more")) < path.index(os.path.dirname(os.__file__)) < path.index(str(ROOT))
    assert (told[0], told[-1]) == (str(folder / "more"), str(ROOT))
