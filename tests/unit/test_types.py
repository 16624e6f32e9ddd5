"""No `Any`, and nothing that a linter or the type checker is to overlook, without a reason beside it."""

import ast
import re
import tokenize
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = ("controller/core", "strategies", "protocol", "workers/simulated")
"""Where the type checker is strict: `strict` of [tool.basedpyright]."""
TREE = ("strategies", "protocol", "install", "controller", "workers", "launch.py")
OVERLOOKED = re.compile(r"#\s*(?:type:\s*ignore|pyright:\s*ignore|(?:ruff:\s*)?noqa)(?P<rest>.*)")
NAMED = re.compile(r"\s*(?:\[[\w\s,-]+\]|:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)(?P<reason>.*)", re.DOTALL)


def comments(text: str) -> dict[int, str]:
    """The comments of a file, by line."""
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def names_any(node: ast.AST) -> bool:
    """Whether it is Any, or a string that is a type with Any in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value:
        try:
            return any(map(names_any, ast.walk(ast.parse(node.value, mode="eval"))))
        except SyntaxError:  # prose
            return False
    return isinstance(node, ast.Name) and node.id == "Any"


def unreasoned_any(text: str) -> Iterator[int]:
    """Lines that name Any and say nothing beside it."""
    if "Any" not in text:
        return
    said = comments(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.expr) and names_any(node) and node.lineno not in said:
            yield node.lineno


def unreasoned_ignores(text: str) -> Iterator[int]:
    """Lines with an ignore that does not name its rule, or gives no reason behind it."""
    for line, comment in (comments(text) if OVERLOOKED.search(text) else {}).items():
        for found in OVERLOOKED.finditer(comment):
            named = NAMED.fullmatch(found["rest"])
            if named is None or not named["reason"].strip(" #"):
                yield line


def files(places: tuple[str, ...]) -> list[Path]:
    found = [ROOT / place for place in places]
    return [file for one in found for file in ([one] if one.is_file() else sorted(one.rglob("*.py")))]


def test_any_has_a_reason_in_the_pure_folders():
    found = [f"{f.relative_to(ROOT)}:{line}" for f in files(PURE) for line in unreasoned_any(f.read_text())]
    assert not found, (
        f"{', '.join(found)}: give it the type that it has, `object` if it is only handed on, or a name of "
        "its own whose definition says in a comment why it is Any."
    )


def test_what_is_overlooked_has_a_reason():
    lines = {f.relative_to(ROOT): [*unreasoned_ignores(f.read_text())] for f in files(TREE)}
    found = [f"{file}:{line}" for file, each in lines.items() for line in each]
    assert not found, (
        f"{', '.join(found)}: mend what is found, or name the rule and say why: "
        "`# pyright: ignore[reportX]  # the reason`, `# noqa: X123  # the reason`."
    )


def test_the_pure_folders_are_those_that_are_checked_strictly():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    assert tuple(settings["strict"]) == PURE


@pytest.mark.parametrize("text", ["x: Any = 1\n", "x = cast('list[Any]', y)\n", "def f() -> Any: pass\n"])
def test_an_any_without_a_word_is_seen(text):
    assert list(unreasoned_any(text)) == [1]
    assert list(unreasoned_any(text.replace("\n", "  # a reason\n"))) == []


@pytest.mark.parametrize(
    "comment",
    ["# type: ignore", "# type: ignore[x]", "# pyright: ignore[x]", "# noqa", "# noqa: E5", "# noqa  # why"],
)
def test_an_ignore_without_a_rule_or_a_reason_is_seen(comment):
    assert list(unreasoned_ignores(f"x = 1  {comment}\n")) == [1]


@pytest.mark.parametrize("comment", ["# type: ignore[x]  # why", "# noqa: E501  # why", "# noqa: E1, F2 why"])
def test_an_ignore_with_both_is_taken(comment):
    assert list(unreasoned_ignores(f"x = 1  {comment}\n")) == []
