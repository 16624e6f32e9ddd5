"""What pure files may import, which rooms do without torch, who writes the load of an instance, how large a
class may grow. A failure says how to mend it."""

import ast
from pathlib import Path

import pytest

from tests.unit.test_layout import ROOT, imports, pure_files, sources

PURE_MAY_IMPORT = {
    "bisect", "collections", "contextlib", "dataclasses", "decimal", "difflib", "enum", "functools",
    "hashlib", "heapq", "inspect", "ipaddress", "itertools", "json", "math", "operator", "random", "re",
    "statistics", "string", "types", "typing", "zlib", "msgpack", "msgspec", "numpy", "pydantic",
    "controller", "protocol", "strategies", "workers",
}  # fmt: skip
"""Which of our own packages' modules: test_layout.py."""
ALSO = {
    "protocol/messages/pieces.py": {"sys"},  # interns names
    "controller/config/rules.py": {"urllib"},  # takes an address apart
    "controller/durability/image/freezer.py": {"gc"},  # pauses it; nothing is decided from it
}
TORCH_FREE = ("link", "reward", "sandbox", "host")
MAY_HAVE_TORCH = {  # inside a function, or in a module that only a run with it loads
    "workers/host/machine.py", "workers/reward/kinds/model.py",
}  # fmt: skip
LOADS = {
    "resident_tokens",
    "urgent",
    "evaluating",
    "running",
    "promised",
    "ready_instances",
    "busy_instances",
}
CHANGES = {"pop", "clear", "update", "setdefault", "popitem"}
WRITER_OF_LOADS = "controller/core/state/registry.py"
MOST_PUBLIC = 20
LARGE_CLASSES = {"Store": 23}  # they may shrink, and never grow


def test_pure_files_import_what_is_listed():
    for file in pure_files():
        name = str(file.relative_to(ROOT))
        tops = {module.partition(".")[0] for module in imports(file)}
        further = tops - PURE_MAY_IMPORT - ALSO.get(name, set())
        assert not further, (
            f"{name} lies below the purity line and imports {sorted(further)}. Take what it needs as an "
            "argument; if it is as pure as the others, name it in PURE_MAY_IMPORT here."
        )


@pytest.mark.parametrize("room", TORCH_FREE)
def test_these_rooms_of_workers_do_without_torch(room):
    for file in sources(f"workers/{room}"):
        name = str(file.relative_to(ROOT))
        heavy = {module.partition(".")[0] for module in imports(file)} & {"torch", "vllm"}
        assert not heavy or name in MAY_HAVE_TORCH, (
            f"{name} imports {sorted(heavy)}, which takes 4 s and 200 MB in every process of that role. Move "
            "what needs it to the engines, models, weights or the trainer."
        )


def written_loads(tree: ast.AST) -> list[int]:
    """Lines that change the load of an instance by assignment, `del`, or a method of the collection."""
    found: list[int] = []
    for node in ast.walk(tree):
        target = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            target = node.func.value
            is_written = True
        else:
            is_written = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
        is_own = is_own and target.value.id == "self"
        if is_written and not is_own and isinstance(target, ast.Attribute) and target.attr in LOADS:
            found.append(target.lineno)
    return found


def test_only_the_registry_writes_the_load_of_an_instance():
    for file in sources("controller/core"):
        name = str(file.relative_to(ROOT))
        lines = [] if name == WRITER_OF_LOADS else written_loads(ast.parse(file.read_text()))
        assert not lines, (
            f"{name}, line {lines[0]}, changes the load of an instance. Do it in a method of the registry "
            "(place, take, grow, expect, has_pulled, hand_over), which keeps the sums."
        )


@pytest.mark.parametrize(
    "code",
    [
        "instance.urgent += 1", "a.running[id] = 2", "del one.running[id]", "instance.promised.clear()",
        "registry.busy_instances -= 1", "x.resident_tokens, y = 1, 2",
    ],
)  # fmt: skip
def test_every_way_to_write_a_load_is_seen(code):
    assert written_loads(ast.parse(code)) == [1]


@pytest.mark.parametrize("code", ["self.running = 1", "n = a.running[id]", "len(a.promised)", "a.tokens = 1"])
def test_reading_a_load_is_no_writing(code):
    assert written_loads(ast.parse(code)) == []


@pytest.mark.parametrize("package", ["controller", "strategies", "protocol", "workers"])
def test_no_class_has_more_public_names_than_one_can_keep_in_mind(package):
    for file in sources(package):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            public = [one.name for one in functions if not one.name.startswith("_")]
            most = LARGE_CLASSES.get(node.name, MOST_PUBLIC)
            assert len(public) <= most, (
                f"{Path(file).relative_to(ROOT)}: {node.name} has {len(public)} public methods, at most "
                f"{most}: split it by who calls them"
            )
