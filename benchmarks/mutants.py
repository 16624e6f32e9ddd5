"""Mutants of the core and the strategies, drawn by a seed: `python -m benchmarks.mutants [--count N]`.

Each is one changed operator, number or branch on one line of a copy of this checkout; the tests that need no
worker process must go red. Mutants that survive are printed with their diff. cosmic-ray (`pip install
cosmic-ray`) makes them. Annotations and the text of messages are not drawn.
"""

import argparse
import difflib
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("controller/core", "strategies")
KINDS = (
    "AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceBinaryOperator", "ReplaceBreakWithContinue",
    "ReplaceComparisonOperator", "ReplaceContinueWithBreak", "ReplaceFalseWithTrue", "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse", "ReplaceUnaryOperator", "ZeroIterationForLoop",
)  # fmt: skip
TYPES = "BitOr"  # `int | None` of an annotation: changed, the module does not load, which shows nothing
FIRST = ("tests/unit/strategies", "tests/unit/controller")
TESTS = (*FIRST, "tests/properties", "tests/simulation", "tests/unit")
LIMIT_S = 1800.0  # a mutant that makes the tests hang is seen as well


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    path: str
    line: int
    operator: str
    occurrence: int


def places(path: str, source: str) -> list[Mutant]:
    """Every change that can be made to a file."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    tree, found = get_ast(source), list[Mutant]()
    for name in sorted(operator_names()):
        kind = name.split("/")[1].split("_")[0]
        if kind not in KINDS or TYPES in name:
            continue
        operator, count = get_operator(name)(), 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                found.append(Mutant(path, start[0], name, count))
                count += 1
    return found


def draw(count: int, seed: int) -> list[Mutant]:
    """So many, each on a line of its own: first the line is drawn, then what is changed there."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            for mutant in places(path, file.read_text()):
                by_line.setdefault((path, mutant.line), []).append(mutant)
    rng = random.Random(seed)
    lines = rng.sample(sorted(by_line), min(count, len(by_line)))
    print(f"{len(by_line)} lines can be changed in {sum(map(len, by_line.values()))} ways")
    return [rng.choice(by_line[line]) for line in lines]


def apply(mutant: Mutant, folder: Path) -> str:
    """Change the file in `folder`; returns the diff."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    file = folder / mutant.path
    before = (ROOT / mutant.path).read_text()
    after = mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence)
    assert after is not None, f"{mutant} changes nothing"
    file.write_text(after)
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=0))


def is_red(folder: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether one of the tests fails there, and which."""
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"--basetemp={empty}/pytest", *tests]
        try:
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return True, f"hangs for {LIMIT_S:.0f} s"
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ran.returncode != 0, failed[0][:150] if failed else ran.stdout[-150:]


def main() -> None:
    """Draw, change, test, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of those to test; all if left out")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="those nearest to a mutant cost less")
    options = parser.parse_args()
    try:
        import cosmic_ray  # noqa: F401
    except ImportError:
        sys.exit("cosmic-ray makes the mutants and is not installed: pip install cosmic-ray")
    mutants = draw(options.count, options.seed)
    survivors = 0
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for number, mutant in enumerate(mutants):
        if options.only is not None and number not in options.only:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as there:
            folder = Path(there) / "checkout"
            for name in files.splitlines():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
            diff = apply(mutant, folder)
            red, why = is_red(folder, options.tests)
        survivors += not red
        took = time.monotonic() - began
        verdict = f"{'red' if red else 'SURVIVES'} after {took:.0f} s"
        print(f"{number} {mutant.path}:{mutant.line} {verdict}: {why}\n{diff}", flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{survivors} of {len(mutants) if options.only is None else len(options.only)} mutants survive")


if __name__ == "__main__":
    main()
