"""The arrows of docs and design: who may import whom. A failure says how to mend it."""

import ast
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
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
PURE = {
    "protocol": "ids messages codec session errors settings algorithms reward_shapes blame plain_text",
    "controller": "core ledger groups registry policy_versions dispatch_queue events commands config "
    "config_rules simulation_settings cluster_settings snapshot metrics coordination membership scoring "
    "state training feed examples dispatch loose_ledger moves pulls fan_out drift shortlist fingerprint "
    "core_image evaluation evaluation_dispatch evaluation_line evaluation_settings waits watchdog returns "
    "pluggable known_names bottleneck limits limit_settings asks told door",
}
IMPURE = {"asyncio", "socket", "time", "zmq", "os", "pathlib", "subprocess", "threading", "logging", "uuid"}
LATE = {("controller/config.py", "controller.config_file")}  # inside load_config, which reads a file
SIMULATION = "controller/simulation/"  # hosts the core in virtual time, with simulated workers


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


def is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").exists()


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
    named = [ROOT / package / f"{name}.py" for package, names in PURE.items() for name in names.split()]
    missing = [file for file in named if not file.exists()]
    assert not missing, f"{missing} are gone; take them out of PURE here"
    return [*named, *sources("strategies")]


def test_nothing_below_the_purity_line_can_touch_the_world():
    pure = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in pure_files()}
    for file in pure_files():
        name = str(file.relative_to(ROOT))
        for module in imports(file):
            top = module.partition(".")[0]
            assert top not in IMPURE, (
                f"{name} imports {module}, but lies below the purity line: no clock, socket, disk, logging "
                "or event loop there. Take what it needs as an argument, or let the host do it on a "
                "command."
            )
            if (
                top in ("protocol", "controller")
                and (name, module) not in LATE
                and module != "protocol.importing"
            ):
                assert module in pure, (
                    f"{name} imports {module}, which lies above the purity line. Turn the arrow round: let "
                    "the host call the pure part."
                )


def test_importing_the_controller_pulls_in_nothing_heavy():
    words = (
        "import sys, controller, controller.cli, protocol; "
        "print([m for m in sys.modules if m.partition('.')[0] in %r])"
    )
    done = subprocess.run(
        [sys.executable, "-c", words % HEAVY], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]", (
        "importing controller pulled these in: find who imports them with python -X importtime, and move "
        "that import into workers"
    )


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_package_is_installed(package):
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    for folder in {file.parent for file in sources(package)}:
        name = ".".join(folder.relative_to(ROOT).parts)
        assert any(fnmatchcase(name, pattern) for pattern in found["include"]), (
            f"{name} is not installed by pip: let a pattern of [tool.setuptools.packages.find] include it"
        )
        assert (folder / "__init__.py").exists(), f"{name} is not a package: give it an __init__.py"
