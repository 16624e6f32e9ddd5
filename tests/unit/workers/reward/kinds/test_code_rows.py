"""Tests of programs, read from rows as data sets have them."""

import json

import pytest

from workers.reward.kinds.code_rows import Asserts, Calls, Pairs, read_tests
from workers.reward.kinds.interface import Unscorable

ROWS = {
    "own": ({"tests": [{"input": "1\n", "output": "2\n"}]}, Pairs(("1\n",), ("2\n",))),
    "mbpp": (
        {"test_list": ["assert f(1) == 2"], "test_setup_code": "x = 1", "test_imports": ["import math"]},
        Asserts(("assert f(1) == 2",), "import math\nx = 1", ""),
    ),
    "humaneval": (
        {"test": "def check(candidate): assert candidate(1) == 2", "entry_point": "f"},
        Asserts(("def check(candidate): assert candidate(1) == 2",), "", "f"),
    ),
    "apps": (
        {"input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})},
        Pairs(("1\n",), ("2\n",)),
    ),
    "apps function": (
        {"input_output": json.dumps({"inputs": [[1, [2]]], "outputs": [[3]], "fn_name": "f"})},
        Calls("f", ((1, [2]),), ([3],)),
    ),
    "code_contests": ({"public_tests": {"input": ["1"], "output": ["2"]}}, Pairs(("1",), ("2",))),
    "code_contests without private tests": (
        {"private_tests": {"input": [], "output": []}, "public_tests": {"input": ["1"], "output": ["2"]}},
        Pairs(("1",), ("2",)),
    ),
    "livecodebench without private tests": (
        {"private_test_cases": "[]", "public_test_cases": json.dumps([{"input": "1", "output": "2"}])},
        Pairs(("1",), ("2",)),
    ),
    "lines": ({"tests": {"inputs": [["1", "2"]], "outputs": [["3"]]}}, Pairs(("1\n2",), ("3",))),
    "livecodebench": (
        {
            "public_test_cases": json.dumps(
                [{"input": "[1, 2]\n3", "output": "4", "testtype": "functional"}]
            ),
            "metadata": json.dumps({"func_name": "f"}),
        },
        Calls("f", (([1, 2], 3),), (4,)),
    ),
    "livecodebench stdin": (
        {"public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])},
        Pairs(("1",), ("2",)),
    ),
    "verl": (
        {"reward_model": {"ground_truth": json.dumps({"inputs": ["1"], "outputs": ["2"]})}},
        Pairs(("1",), ("2",)),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_tests_are_found_where_data_sets_have_them(name):
    row, expected = ROWS[name]
    assert read_tests({"prompt": "p", **row}) == expected


def test_a_named_column_is_the_only_one_that_counts():
    row = {"tests": ["assert f(1) == 2"], "mine": [{"input": "a", "output": "b"}]}
    assert read_tests(row, "mine") == Pairs(("a",), ("b",))
    with pytest.raises(Unscorable, match="`other`"):
        read_tests(row, "other")


@pytest.mark.parametrize(
    "row",
    [
        {}, {"tests": []}, {"tests": 5}, {"tests": [1]}, {"tests": {"inputs": ["1"], "outputs": []}},
        {"tests": {"inputs": ["1"]}},
        {"public_test_cases": [{"input": "1", "output": "2", "testtype": "functional"}]},
        {"tests": [{"input": "x", "output": "2", "testtype": "functional"}], "metadata": {"func_name": "f"}},
    ],
)  # fmt: skip
def test_a_row_without_tests_is_no_fault_of_the_response(row):
    with pytest.raises(Unscorable):
        read_tests(row)
