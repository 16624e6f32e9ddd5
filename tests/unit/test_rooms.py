"""The rooms of the house: which folder may import which, and how large a room may grow. A failure says how to
mend it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("controller", "workers", "protocol", "strategies")
MOST_FILES = 16  # of a folder, __init__.py not counted
MOST_LINES = 400
MOST_FUNCTION_LINES = 50
LONG_FILES: dict[str, int] = {}  # they may shrink, and never grow
LONG_FUNCTIONS: set[tuple[str, str]] = set()
CONTROLLER = {
    "config": set(),
    "core": {"config"},
    "data": {"config"},
    "given": {"config", "data"},
    "check": {"compiled", "config", "data"},
    "compiled": set(),
    "durability": {"config", "core", "siblings"},
    "history": {"config", "core", "durability"},
    "view": {"config", "core", "durability", "history"},
    "simulation": {"config", "core", "durability", "history"},
    "host": {"config", "core", "data", "durability", "siblings"},
    "cluster": {"config"},
    "cli": {"check", "cluster", "compiled", "config", "durability", "history", "simulation", "view"},
}  # room -> rooms that it may import; controller/controller.py stands above them all
WORKERS = {
    "link": set(),
    "models": {"link"},
    "sandbox": {"link"},
    "children": {"link", "sandbox"},
    "weights": {"link"},
    "engines": {"models"},
    "rollout": {"engines", "link", "weights"},
    "reward": {"children", "link", "models", "sandbox"},
    "agent": {"children", "link", "models"},
    "trainer": {"link", "models", "weights"},
    "evaluate": {"agent", "engines", "models", "reward", "rollout"},
    "simulated": set(),
    "host": {"agent", "link", "reward", "rollout", "sandbox", "trainer", "weights"},
}
DECISIONS = """
training.training > training.logprob_drift, training.trainer_batches
versions.publication > versions.relay_tree
versions.pulls > versions.relay_tree
workers.membership > supply.scoring, training.training
"""  # which decision uses which other one; the list may shrink, and never grow
SAME_ROLE = """
admission migration: the decision, what it sees of the state, the rule that is chosen
engine link trainer: the simulated one beside the real one
beside listener server serve site: one process or server each
child pipe pool process: agents and reward functions of the user, each in children of their own
function kinds: kinds of agents, of rewards, of strategies
data lora machine memory model prompts strategies: a subject's settings, its check, its work
critic policy: the loss of it, the model itself, an agent's view of it
episodes kept_sets limits: the state or layout, and the decisions on it
from_run render stacks whatif: the command or page, and the work behind it
interface settings: what a plug-in or a section holds
kept: kept sets, as an engine tells them and as the losses take them
own: what the user wrote, taken for one of ours
store supervisor: files of the run and of weights; workers and tested programs
worker: the loop of each role
"""  # names of modules that more than one folder has: what these modules share


def arrows(folder: str) -> Iterator[tuple[str, str, str]]:
    """Of each import below a folder: the file, and both modules as their names in it."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        me = ".".join(file.relative_to(ROOT / folder).with_suffix("").parts)
        prefix = folder.replace("/", ".") + "."
        for name in imported(file):
            if name.startswith(prefix):
                yield str(file.relative_to(ROOT)), me, name.removeprefix(prefix)


@cache
def imported(file: Path) -> list[str]:
    """Dotted names of what a file imports, wherever in it: modules, and names in modules."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


@pytest.mark.parametrize(("package", "rooms"), [("controller", CONTROLLER), ("workers", WORKERS)])
def test_a_room_imports_only_those_below_it(package, rooms):
    found = {path.name for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
    assert found == set(rooms), f"rooms of {package}: name each here, with the rooms that it may import"
    for file, me, other in arrows(package):
        mine, theirs = me.partition(".")[0], other.partition(".")[0]
        if "." not in me or theirs in (mine, package):  # controller.controller has a test of its own
            continue
        assert theirs in rooms[mine], (
            f"{file} imports {package}.{other}, but {mine} may import only {', '.join(sorted(rooms[mine]))}. "
            f"Move what both need down, or let who stands above both pass it in."
        )


def test_the_controller_stands_above_its_rooms():
    for file, _, other in arrows("controller"):
        is_cli = file.startswith("controller/cli/")
        assert other.partition(".")[0] != "controller" or is_cli or file == "controller/__init__.py", (
            f"{file} imports controller.controller, which only commands and programs use"
        )


def test_state_knows_no_decision():
    for file, _, other in arrows("controller/core"):
        if file.startswith("controller/core/state/"):
            assert not other.startswith(("decisions", "effects")), (
                f"{file} imports {other}: state is what is, decisions change it. Pass a value in."
            )


def test_effects_know_no_decision_and_are_shared():
    """A verb lies in core/effects because several decisions use it, and not to keep it off the list above."""
    users: dict[str, set[str]] = defaultdict(set)
    for file, me, other in arrows("controller/core"):
        if file.startswith("controller/core/effects/"):
            assert not other.startswith("decisions"), (
                f"{file} imports {other}: what only one decision wants to know lies with that decision."
            )
        if "." in me and other.startswith("effects."):  # core.py makes and hands round all of them
            users[".".join(other.split(".")[:2])].add(me)
    for file in sorted((ROOT / "controller/core/effects").glob("[a-z]*.py")):
        using = users[f"effects.{file.stem}"]
        assert len(using) > 1, f"{file.name} is used by {sorted(using)} alone: let it lie there"


def test_decisions_use_each_other_only_as_listed():
    allowed = {
        (user.strip(), used.strip())
        for line in DECISIONS.strip().splitlines()
        for user, _, row in [line.partition(">")]
        for used in row.split(",")
    }
    used = {
        (me, ".".join(other.split(".")[:2]))
        for _, me, other in arrows("controller/core/decisions")
        if me != ".".join(other.split(".")[:2])
    }
    assert used <= allowed, (
        f"{sorted(used - allowed)}: a decision imports another one that it did not. Put what both need into "
        "core/state, or let the core call both."
    )
    assert allowed <= used, f"{sorted(allowed - used)} are used no more: take them out of DECISIONS here"


def test_no_room_and_no_file_is_too_large_to_know():
    for package in PACKAGES:
        folders: dict[Path, int] = defaultdict(int)
        for file in sorted((ROOT / package).rglob("*.py")):
            name, text = str(file.relative_to(ROOT)), file.read_text()
            folders[file.parent] += file.name not in ("__init__.py", "__main__.py")
            lines, most = text.count("\n"), LONG_FILES.get(name, MOST_LINES)
            assert lines <= most, f"{name} has {lines} lines, at most {most}: split it by what it decides"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or 0) - node.lineno + 1
                    assert length <= MOST_FUNCTION_LINES or (name, node.name) in LONG_FUNCTIONS, (
                        f"{name}: {node.name} has {length} lines, at most {MOST_FUNCTION_LINES}: split it"
                    )
        for folder, count in folders.items():
            where = folder.relative_to(ROOT)
            assert count <= MOST_FILES, f"{where} has {count} files, at most {MOST_FILES}: make rooms in it"


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "install", "docs", "examples"])
def test_no_file_beside_the_packages_is_longer_than_those_in_them(folder):
    for file in sorted((ROOT / folder).rglob("*.py")):
        lines = file.read_text().count("\n")
        where = file.relative_to(ROOT)
        assert lines <= MOST_LINES, f"{where} has {lines} lines, at most {MOST_LINES}: split it"


def test_one_name_is_one_class():
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert not twice, f"{twice}: two public classes of one name; rename one to what it is of"


def test_modules_of_one_name_have_one_role():
    folders: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("[a-z]*.py")):
            folders[file.stem].append(str(file.parent.relative_to(ROOT)))
    twice = {name: places for name, places in folders.items() if len(places) > 1}
    said = [name for line in SAME_ROLE.strip().split("\n") for name in line.partition(":")[0].split()]
    new = {name: places for name, places in twice.items() if name not in said}
    assert not new, (
        f"{new}: two modules of one name; rename one to what it is of, or say in SAME_ROLE what they share"
    )
    assert not (old := set(said) - set(twice)), f"{old}: one module each; take them out of SAME_ROLE"
