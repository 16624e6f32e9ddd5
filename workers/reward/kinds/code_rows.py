"""Reads the tests of a data row, in the formats that common data sets use.

Invariant: pure. A row without tests that can be run is Unscorable: the response is not at fault.
Source: the columns of MBPP, HumanEval, APPS and TACO, LiveCodeBench, code_contests and verl.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from protocol.rewards.kinds import find
from workers.reward.kinds.interface import Unscorable

COLUMNS = (
    "tests", "test_list", "test", "input_output", "test_cases", "private_test_cases", "public_test_cases",
    "private_tests", "public_tests", "reward_model.ground_truth", "ground_truth", "answer",
)  # fmt: skip
"""Columns in which tests are looked for, if none is named; the first non-empty one counts."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Tests that run the program with each input, and compare its output."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests that are Python code with asserts about the program's definitions."""

    texts: tuple[str, ...]
    setup: str
    entry: str
    """The function that the tests call `candidate`, such as `f` or `Solution().f`; "" if none."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Tests that call a function with arguments, and compare its results."""

    function: str
    arguments: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...]


RowTests = Pairs | Asserts | Calls


def read_tests(row: Mapping[str, Any], column: str = "") -> RowTests:
    """The tests of a row, in `column` or in the usual columns. Raises: Unscorable."""
    for name in [column] if column else COLUMNS:
        value = _parsed(find(row, name))
        if not value or (isinstance(value, Mapping) and not any(value.values())):
            continue  # also lists of no inputs and outputs, as code_contests has them
        tests = _read(value, row)
        if tests is not None:
            return tests
        raise Unscorable(
            f"The row has no tests that can be read in the column `{name}`, but {type(value).__name__} "
            f"{value!r:.80}. {_EXPECTED}"
        )
    looked = f"`{column}`" if column else ", ".join(COLUMNS)
    raise Unscorable(f"The row has no tests; looked for in {looked}. {_EXPECTED}")


_EXPECTED = (
    "Expected a list of {input, output}, {inputs, outputs} with or without fn_name, or asserts as text or a "
    "list of texts. Name the column in `tests` of this reward."
)


def _parsed(value: Any) -> Any:
    """The value of JSON text; other text is Python code and stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _read(value: Any, row: Mapping[str, Any]) -> RowTests | None:
    if isinstance(value, str):
        return _asserts([value], row)
    if isinstance(value, Mapping):
        return _columns_of_tests(value, row)
    if not isinstance(value, Sequence) or not value:
        return None
    if all(isinstance(item, str) for item in value):
        return _asserts(value, row)
    if all(isinstance(item, Mapping) and "input" in item and "output" in item for item in value):
        together = {
            "inputs": [item["input"] for item in value],
            "outputs": [item["output"] for item in value],
        }
        is_call = any(item.get("testtype") == "functional" for item in value)
        return _columns_of_tests(together, row, is_text_of_arguments=is_call)
    return None


def _asserts(texts: Sequence[str], row: Mapping[str, Any]) -> RowTests:
    setup = row.get("test_setup_code") or row.get("setup") or ""
    imports = row.get("test_imports") or ()
    lines = [*imports] if isinstance(imports, list | tuple) else []
    entry = row.get("entry_point")
    return Asserts(
        tuple(texts), "\n".join([*map(str, lines), str(setup)]), entry if isinstance(entry, str) else ""
    )


def _columns_of_tests(
    value: Mapping[str, Any], row: Mapping[str, Any], *, is_text_of_arguments: bool = False
) -> RowTests | None:
    inputs = value.get("inputs", value.get("input"))
    outputs = value.get("outputs", value.get("output"))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        return None
    if len(inputs) != len(outputs):
        return None
    function = value.get("fn_name") or _function_of(row, is_needed=is_text_of_arguments)
    if function:
        if is_text_of_arguments:  # a line of JSON for each argument
            arguments = [[_json(line) for line in str(text).split("\n") if line] for text in inputs]
            expected = [_json(str(text)) for text in outputs]
        else:
            arguments, expected = inputs, outputs
        whole = [tuple(item) if isinstance(item, list) else (item,) for item in arguments]
        return Calls(str(function), tuple(whole), tuple(expected))
    return Pairs(tuple(map(_text, inputs)), tuple(map(_text, outputs)))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Unscorable(f"The row tests a function, and {text!r:.80} in its tests is no JSON.") from None


def _function_of(row: Mapping[str, Any], *, is_needed: bool) -> str:
    for value in _metadata(row):
        name = value.get("func_name") or value.get("fn_name")
        if name:
            return str(name)
    if is_needed:
        raise Unscorable("The row tests a function and does not name it; expected `func_name` in `metadata`.")
    return ""


def _metadata(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("metadata", "extra_info"):
        value = _parsed(row.get(name))
        if isinstance(value, Mapping):
            yield value


def _text(item: Any) -> str:
    """An input or output as text: some data sets keep a list of lines."""
    return "\n".join(map(str, item)) if isinstance(item, list) else str(item)
