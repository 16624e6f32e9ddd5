"""Fenced blocks of the pages: commands parse, YAML is a configuration, and Python imports what there is."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from controller import load_config
from controller.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
OWN = ("controller", "strategies", "protocol", "workers")
STANDS_FOR = {"GROUP": "7"}  # where a page writes a word for a number
QUICKSTART = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())


class Block(NamedTuple):
    """One fenced block."""

    place: str
    kind: str
    text: str


def blocks(kind: str) -> Iterator[Any]:
    """All blocks of a kind, as parameters that are named after their place."""
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            if found[1] == kind:
                block = Block(f"{page.relative_to(ROOT)}:{line}", kind, found[2])
                yield pytest.param(block, id=block.place)


def launches(text: str) -> Iterator[list[str]]:
    """The words behind `launch.py` of each line that runs it."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if any(word.endswith("launch.py") for word in words):
            place = next(i for i, word in enumerate(words) if word.endswith("launch.py"))
            ends = [i for i, word in enumerate(words) if word in ("&", "&&", "|", ">") and i > place]
            yield words[place + 1 : min(ends, default=len(words))]


def parse(words: list[str]) -> None:
    """Let the command line take the words apart, and run nothing. Raises: click's UsageError."""
    group = typer.main.get_command(app)
    if words[0] not in group.commands:
        words = ["run", *words]
    context = group.make_context("launch.py", [*words], resilient_parsing=True)
    command = group.commands[words[0]]
    given = [STANDS_FOR.get(word, word) for word in words[1:] if not word.startswith("[")]
    command.make_context(words[0], given, parent=context)


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The mapping with the keys of another one, nested ones too."""
    both = dict(base)
    for key, value in more.items():
        is_nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if is_nested else value
    return both


def has(module: str, name: str) -> bool:
    """Whether a module of ours binds the name; read, as importing a worker would import torch."""
    place = ROOT / module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    bound: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return name in bound or (place / f"{name}.py").exists() or (place / name / "__init__.py").exists()


@pytest.mark.parametrize("block", [*blocks("")])
def test_every_command_is_one_that_launch_py_takes(block):
    for words in launches(block.text):
        parse(words)


@pytest.mark.parametrize("block", [*blocks("yaml")])
def test_every_yaml_block_is_part_of_a_configuration(block, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "run.yaml"
    more = yaml.safe_load(block.text)
    base = dict(QUICKSTART)
    for section, several in (("reward", "rewards"), ("data", "sources")):  # in place of the one of the base
        if several in more.get(section, {}):
            base[section] = {}
    file.write_text(yaml.safe_dump(merged(base, more)))
    load_config(file)


@pytest.mark.parametrize("block", [*blocks("python")])
def test_every_python_block_uses_what_there_is(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OWN:
            for alias in node.names:
                assert has(node.module or "", alias.name), f"{block.place}: {node.module} has no {alias.name}"


def test_the_pages_have_all_three():
    assert min(len([*blocks(kind)]) for kind in ("", "yaml", "python")) > 5


def test_a_command_that_there_is_not_is_refused():
    with pytest.raises(Exception, match="No such option"):
        parse(["simulate", "examples/quickstart.yaml", "--no-such-option"])


def test_a_name_that_there_is_not_is_seen():
    assert has("controller", "load_config")
    assert has("strategies.views", "InstanceView")
    assert not has("strategies.views", "NoSuchView")


RECIPES = re.findall(r"\| `(\{.*\})` \|$", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_of_another_system_is_a_configuration(recipe, tmp_path):
    assert len(RECIPES) > 8
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"trainer": yaml.safe_load(recipe)}))
    trainer = load_config(str(tmp_path / "run.yaml")).trainer
    assert trainer.importance == yaml.safe_load(recipe).get("importance", "truncate")
