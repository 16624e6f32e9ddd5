"""The arrows of docs and design: who may import whom. A failure says how to mend it."""

import ast
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "vllm"}
PACKAGES = {"controller", "strategies", "protocol", "workers", "examples", "benchmarks", "tests"}
MAY_IMPORT = {
    "protocol": {"protocol"},
    "strategies": {"strategies", "protocol"},
    "controller": {"controller", "strategies", "protocol"},
    "workers": {"workers", "protocol"},
}
PURE = (
    "strategies", "controller/core", "workers/simulated",
    "controller/config/models.py", "controller/config/cluster.py", "controller/config/evaluation.py",
    "controller/config/data.py", "controller/config/data_rules.py",
    "controller/config/limits.py", "controller/config/simulation.py", "controller/config/rules.py",
    "controller/config/agents", "controller/config/devices", "controller/config/sections",
    "controller/config/pluggable.py", "controller/config/known_names.py",
    "controller/config/reward_rules.py", "controller/config/variables.py",
    "controller/durability/fingerprint.py", "controller/durability/image",
    "controller/host/watchdog.py",
    "protocol/ids.py", "protocol/agents/settings.py", "protocol/agents/renderers.py",
    "protocol/messages", "protocol/errors.py",
    "protocol/settings.py",
    "protocol/algorithms.py", "protocol/engines.py", "protocol/rewards", "protocol/section.py",
    "protocol/blame.py", "protocol/kept_sets.py", "protocol/plain_text.py", "protocol/trainer",
    "protocol/wire/codec.py", "protocol/wire/fields.py",
    "protocol/wire/session.py",
)  # fmt: skip
"""Folders and files below the purity line: a new file in such a folder is pure, or the test fails."""
IMPURE = {"asyncio", "socket", "time", "zmq", "os", "pathlib", "subprocess", "threading", "logging", "uuid"}
SIMULATION = "controller/simulation/"  # hosts the core in virtual time, with simulated workers


@cache
def imports(file: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever in it; relative imports are not used here."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write the full name of the module instead of a relative import"
            name = node.module or ""
            modules = {f"{name}.{alias.name}" for alias in node.names if is_module(f"{name}.{alias.name}")}
            found |= modules or {name}
    return found


@cache
def is_module(name: str) -> bool:
    place = ROOT / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_point_down_only(package):
    allowed = MAY_IMPORT[package]
    for file in sources(package):
        name = str(file.relative_to(ROOT))
        for module in imports(file):
            top = module.partition(".")[0]
            if name.startswith(SIMULATION) and module.startswith("workers.simulated"):
                continue
            assert top not in PACKAGES or top in allowed, (
                f"{name} imports {module}, but {package} may import only {', '.join(sorted(allowed))}. Move "
                "what both need down into protocol, or pass it in as an argument."
            )


@pytest.mark.parametrize("package", ["controller", "strategies", "protocol"])
def test_only_workers_import_heavy_packages(package):
    for file in sources(package):
        heavy = {module.partition(".")[0] for module in imports(file)} & HEAVY
        assert not heavy, (
            f"{file.relative_to(ROOT)} imports {', '.join(heavy)}. The controller must run without them: "
            "move the computation into a worker, and send its result as a message."
        )


def pure_files() -> list[Path]:
    named = [ROOT / name for name in PURE]
    missing = [file for file in named if not file.exists()]
    assert not missing, f"{missing} are gone; take them out of PURE here"
    return [file for one in named for file in ([one] if one.is_file() else sorted(one.rglob("*.py")))]


def test_nothing_below_the_purity_line_can_touch_the_world():
    pure = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in pure_files()
    }
    for file in pure_files():
        name = str(file.relative_to(ROOT))
        for module in imports(file):
            top = module.partition(".")[0]
            assert top not in IMPURE, (
                f"{name} imports {module}, but lies below the purity line: no clock, socket, disk, logging "
                "or event loop there. Take what it needs as an argument, or let the host do it on a "
                "command."
            )
            if top in ("protocol", "controller", "workers"):
                assert module in pure, (
                    f"{name} imports {module}, which lies above the purity line. Turn the arrow round: let "
                    "the host call the pure part."
                )


def test_importing_the_controller_pulls_in_nothing_heavy():
    words = (
        "import sys, controller, controller.cli.main, protocol; "
        "print([m for m in sys.modules if m.partition('.')[0] in %r])"
    )
    done = subprocess.run(
        [sys.executable, "-c", words % HEAVY], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]", (
        "importing controller pulled these in: find who imports them with python -X importtime, and move "
        "that import into workers"
    )


def test_every_package_says_that_it_is_typed_wherever_it_is_installed():
    """Without `py.typed`, mypy and pyright take all that a user's plug-in imports of ours for unknown."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in told["package-data"]["*"]
    for name in told["packages"]["find"]["include"]:
        assert (ROOT / name.removesuffix(".*") / "py.typed").exists(), name


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_package_is_installed(package):
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    for folder in {file.parent for file in sources(package)}:
        name = ".".join(folder.relative_to(ROOT).parts)
        assert any(fnmatchcase(name, pattern) for pattern in found["include"]), (
            f"{name} is not installed by pip: let a pattern of [tool.setuptools.packages.find] include it"
        )
        assert (folder / "__init__.py").exists(), f"{name} is not a package: give it an __init__.py"


def test_only_tests_of_benchmarks_import_them():
    for file in sources("tests"):
        found = [name for name in imports(file) if name.startswith("benchmarks.")]
        assert not found or file.parent.name == "benchmarks", (
            f"{file.relative_to(ROOT)} imports {', '.join(found)}: move what it shares with the benchmark to "
            "tests/support, or lay it into a folder `benchmarks` if it is a test of that benchmark."
        )


WRITER_OF_STATES = "controller/core/state/transitions.py"
SETTERS = ("setattr", "__setattr__")


def is_run_state(target: ast.expr, value: ast.expr) -> bool:
    """Whether this hands the RunState to a part of the core: `self.state = state`, `= RunState(...)`."""
    name = value.func if isinstance(value, ast.Call) else value
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    return is_own and target.value.id == "self" and getattr(name, "id", "") in ("state", "RunState")


def written_states(tree: ast.AST) -> list[int]:
    """Lines that write the `.state` of something, in whatever form, but for the RunState of a part."""
    handed: set[ast.expr] = set()
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            is_pair = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if is_pair else [(target, node.value)]
            handed.update(its for its, value in pairs if is_run_state(its, value))
    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_written = node.attr == "state" and isinstance(node.ctx, ast.Store) and node not in handed
        else:
            is_setter = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(SETTERS)
            is_written = is_setter and any(getattr(a, "value", "") == "state" for a in node.args)
        found += [node.lineno] if is_written else []
    return found


def test_only_the_tables_write_the_state_of_a_thing():
    for file in sources("controller"):
        name = str(file.relative_to(ROOT))
        if name == WRITER_OF_STATES:
            continue
        lines = written_states(ast.parse(file.read_text()))
        assert not lines, (
            f"{name}, line {lines[0]}, assigns a `.state`. Give the thing's table in {WRITER_OF_STATES} an "
            "event for it, and call move_group, move_trajectory or move_worker."
        )


@pytest.mark.parametrize(
    "code",
    [
        "group.state = 'waiting'", "a.b, member.state = 1, 'queued'", "self.state, x = 'ready', state",
        "worker.state: str = 'ready'", "setattr(group, 'state', 'gone')", "for group.state in names: pass",
        "(a, (b.state, c)) = it",
    ],
)  # fmt: skip
def test_every_way_to_write_a_state_is_seen(code):
    assert written_states(ast.parse(code)) == [1]


@pytest.mark.parametrize(
    "code", ["self.state = state", "self.state = RunState(c)", "self.state, x = state, y"]
)
def test_parts_of_the_core_may_hold_the_run_state(code):
    assert written_states(ast.parse(code)) == []


def hidden_errors(tree: ast.AST) -> list[int]:
    """Lines that ask a method of Path which, since Python 3.14, takes errors of the disk for "not there"."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.args]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("exists", "is_file", "is_dir")
    ]


def test_an_error_of_the_disk_is_not_taken_for_a_file_that_is_not_there():
    for file in (each for package in ("controller", "workers", "protocol") for each in sources(package)):
        lines = hidden_errors(ast.parse(file.read_text()))
        assert not lines, (
            f"{file.relative_to(ROOT)}, line {lines[0]}, asks a Path whether it is there. Ask `exists`, "
            "`is_file` or `is_dir` of protocol/files.py."
        )
    assert hidden_errors(ast.parse("if (a / b).exists(): pass\nis_file(a)")) == [1]
