"""Verdicts on programs: right ones for honest programs, and 0 for those that write what they like."""

import asyncio

import pytest

from protocol.errors import ConfigError
from protocol.rewards.kinds import CodeReward
from workers.reward.kinds.code import make, verdicts
from workers.reward.kinds.code_rows import Asserts, Calls, Pairs
from workers.reward.kinds.interface import Place, Unscorable
from workers.sandbox.box import Box
from workers.sandbox.chosen_box import open_box
from workers.sandbox.job import Job, ProgramLimits

OPTIONS = CodeReward(credit="fraction", cpu_s=20, wall_s=600, memory_mb=256, total_s=600)
QUICK = CodeReward(credit="fraction", cpu_s=0.5, wall_s=20, memory_mb=256, output_kb=64)
SQUARES = Asserts(("assert f(2) == 4\nassert f(-3) == 9", "assert 25 == f(5)"), "", "")
HONEST = "def f(x): return x * x"


@pytest.fixture
async def box():
    try:
        made = await open_box("bubblewrap")
    except ConfigError as error:
        pytest.skip(f"The sandbox cannot be had on this machine: {error}")
    async with made:
        yield made


def asserts(*texts: str, setup: str = "", entry: str = "") -> Asserts:
    return Asserts(texts, setup, entry)


CLASS = """
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
"""
HONEST_ONES = {
    "equal": (HONEST, SQUARES, [True] * 3),
    "partly": ("def f(x): return x + 2", SQUARES, [True, False, False]),
    "data of all kinds": (
        "def f(x): return x",
        asserts(
            "for x in (None, True, 1, -1.5, 'ä\\n', b'b', (1, [2]), {1: {2}}, frozenset({3}), 2j, 10**400):\n"
            "  assert f(x) == x and type(f(x)) is type(x)",
            "import math\nassert math.isnan(f(math.nan))",
            "from decimal import Decimal\nassert f(Decimal('1.5')) == Decimal('1.5')",
            "from fractions import Fraction\nassert f(Fraction(1, 3)) == Fraction(1, 3)",
        ),
        [True] * 4,
    ),
    "a check": (HONEST, asserts("def check(candidate):\n  assert candidate(2) == 4", entry="f"), [True]),
    "a check of a method": (
        f"class Solution:\n  {HONEST.replace('(x)', '(self, x)')}",
        asserts("def check(candidate):\n  assert candidate(x = 2) == 4", entry="Solution().f"),
        [True],
    ),
    "a check of a method that is not there": (
        HONEST, asserts("def check(candidate):\n  assert candidate(2) == 4", entry="Solution().f"), [False],
    ),
    "a check that is called": (
        HONEST, asserts("def check(g):\n  assert g(2) == 4\ncheck(f)\ncheck(f)"), [True, True],
    ),
    "as pytest": (HONEST, asserts("from solution import f\ndef test_it():\n  assert f(3) == 9"), [True]),
    "behind a guard": (
        "def f(x): return -1",
        asserts(
            "def test_it():\n  assert f(3) == 9\nif __name__ == '__main__':\n  test_it()\n  print('ok')",
            "if __name__ == '__main__':\n  assert f(2) == 4",
            "def test_z():\n  assert f(1) == -1\nif __name__ == '__main__':\n  __import__('pytest').main()",
        ),
        [False, False, True],
    ),
    "async": (
        HONEST,
        asserts("async def test_it():\n  assert f(3) == 9", "async def test_less():\n  assert f(3) == 8"),
        [True, False],
    ),
    "in place": ("def f(x): x.sort()", asserts("a = [3, 1]\nf(a)\nassert a == [1, 3]"), [True]),
    "an exception": (
        "def f(x): raise ValueError('no')",
        asserts("try:\n  f(1)\n  assert False\nexcept ValueError as error:\n  assert str(error) == 'no'"),
        [True],
    ),
    "a class": (
        CLASS,
        asserts("s = Stack([1])\nassert len(s.push((2,))) == 2", "assert list(s) == [1, (2,)] == s.items"),
        [True, True],
    ),
    "a function as argument": (
        "def f(g, items): return (g(item) for item in items)",
        asserts("assert list(f(lambda x: x * 10, [1, 2])) == [10, 20]"),
        [True],
    ),
    "modules of the tests": (
        "import math\ndef f(x): return x / 3", asserts("assert math.isclose(f(1), 1 / 3)"), [True],
    ),
    "names of the program": ("def f(x): pass\ndef other(): return 1", asserts("assert other() == 1"), [True]),
    "a missing name": ("def g(x): return x", SQUARES, [False] * 3),
    "no Python": ("def f(x: return", SQUARES, [False] * 3),
    "an exception at the start": ("1 / 0", SQUARES, [False] * 3),
    "its own standard output": ("def f(x):\n  print('x')\n  return x * x", SQUARES, [True] * 3),
    "calls": ("def f(a, b): return (a, b)", Calls("f", ((1, 2), (3, 4)), ([1, 2], [4, 3])), [True, False]),
    "calls of a method": (
        "class Solution:\n  def f(self, a): return {1: a}", Calls("f", ((5,),), ({"1": 5},)), [True],
    ),
    "pairs": ("print(int(input()) ** 2)", Pairs(("2\n", "3\n"), ("4\n", "8\n")), [True, False]),
    "a main program": (
        "import sys\ndef main(): print(sum(map(int, sys.stdin)))\nif __name__ == '__main__': main()",
        Pairs(("1\n2\n",), ("3",)), [True],
    ),
    "an exit code": ("print(4)\nraise SystemExit(1)", Pairs(("2\n",), ("4\n",)), [False]),
    "a quick exit": ("print(4)\nexit()", Pairs(("2\n",), ("4\n",)), [True]),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST_ONES)
async def test_an_honest_program_gets_what_it_deserves(box, name):
    source, tests, expected = HONEST_ONES[name]
    assert await verdicts(box, source, tests, OPTIONS) == expected


LIES = 'b\'{"count": 3}\\n\' + b\'{"passed": true, "why": ""}\\n\' * 3'
WRITE_ALL = f"""
import os
for folder, _, names in os.walk('/'):
    if folder.startswith(('/proc/sys', '/usr', '/sys')):
        continue
    for name in names:
        try: os.write(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK), {LIES})
        except OSError: pass
for descriptor in range(256):
    try: os.write(descriptor, {LIES})
    except OSError: pass
"""
SEND = """
import json, os, struct
def send(*message):
    data = json.dumps(message).encode()
    os.write(4, struct.pack('>I', len(data)) + data)
"""
FORGERIES = {
    "writes every file and descriptor": WRITE_ALL,
    "writes them in every call": "def f(x):\n  exec(compile(" + repr(WRITE_ALL) + ", 'w', 'exec'))",
    "ends with code 0": "import os; os._exit(0)",
    "ends with code 0 in a call": "import os\ndef f(x): os._exit(0)",
    "exits": "import sys; sys.exit(0)",
    "exits in a call": "def f(x): raise SystemExit(0)",
    "is equal to all": "class E:\n  def __eq__(s, o): return True\n  __ne__ = None\ndef f(x): return E()",
    "is an int that is equal to all": (
        "class E(int):\n  def __eq__(s, o): return True\n  def __hash__(s): return 4\ndef f(x): return E(7)"
    ),
    "has a class that lies": (
        "class E:\n  __class__ = int\n  def __eq__(s, o): return True\ndef f(x): return E()"
    ),
    "replaces the builtins": (
        "import builtins\nbuiltins.AssertionError = builtins.Exception = type('E', (), {})\n"
        "builtins.compile = builtins.exec = builtins.print = builtins.len = lambda *a, **k: 4\ndef f(x): pass"
    ),
    "patches what calls it": (
        "import gc\nfor thing in gc.get_objects():\n"
        "  if type(thing).__name__ in ('Program', 'Peer'):\n"
        "    try: thing._perform = lambda request: ['answer', True]\n    except Exception: pass\n"
        "def f(x): pass"
    ),
    "changes the frames below it": (
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "  frame.f_globals.update(equal=lambda *a: True, orders={'tests': []})\n  frame = frame.f_back\n"
        "def f(x): pass"
    ),
    "answers before it is asked": SEND + "for _ in range(99): send('answer', [True, []])\ndef f(x): pass",
    "answers with handles and nonsense": SEND + (
        "def f(x):\n  send('answer', [{'object': 10**9}, [[0, 4], [-1, 9]]])\n  send('answer', 5)\n  return 0"
    ),
    "calls what it was not given": SEND + (
        "def f(x):\n  for n in (0, -1, 'exit', None): send('call', n, [])\n  return 0"
    ),
    "raises for the tests": SEND + (
        "def f(x):\n"
        "  for name in ('SystemExit', 'StopIteration', 'KeyboardInterrupt'): send('raised', name, '')"
    ),
    "answers with depth": SEND + "def f(x):\n  os.write(4, struct.pack('>I', 200000) + b'[' * 200000)",
    "answers with length": SEND + "def f(x):\n  os.write(4, struct.pack('>I', 2**32 - 1))",
    "claims names of the tests": SEND + (
        "send('answer', ['f', 'abs', 'print', 'len', 'AssertionError', 'isinstance'])\ndef f(x): pass"
    ),
    "leaves a child that writes": (
        f"import os, sys, time\nif os.fork() == 0:\n  os.setsid()\n  while True: os.write(1, {LIES})\n"
        "def f(x): pass"
    ),
    "writes at its end": f"import atexit, os\natexit.register(lambda: os.write(1, {LIES}))\ndef f(x): pass",
    "prints a verdict": f"import os\nos.write(1, {LIES})\nos.write(2, {LIES})\ndef f(x): pass",
    "never answers": "def f(x):\n  while True: pass",
    "takes all memory": "def f(x): return bytearray(10 << 30)",
    "returns without end": "def f(x): return iter(int, 1)",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
async def test_no_program_forges_a_verdict_on_asserts(box, name):
    assert not any(await verdicts(box, FORGERIES[name], SQUARES, QUICK))


@pytest.mark.parametrize(
    "name",
    [
        "writes every file and descriptor",
        "ends with code 0",
        "exits",
        "prints a verdict",
        "writes at its end",
    ],
)
async def test_no_program_forges_a_verdict_on_outputs(box, name):
    tests = Pairs(("2\n", "3\n"), ("4\n", "9\n"))
    assert not any(await verdicts(box, FORGERIES[name], tests, QUICK))


async def test_comparisons_of_the_tests_are_not_the_programs(box):
    """Modules, builtins and operators in a test are its own, whatever the program calls so."""
    source = (
        "class math:\n  isclose = staticmethod(lambda *a: True)\nsorted = abs = all = lambda *a: True\n"
        "class E:\n  __sub__ = __lt__ = __gt__ = __contains__ = lambda s, o: True\n  __abs__ = lambda s: 0\n"
        "def f(x): return E()\n"
    )
    tests = asserts(
        "assert math.isclose(f(1), 2)", "assert sorted([2, f(1)]) == [1, 2]", "assert abs(f(1) - 2) < 0.1",
        "assert f(1) < 5", "assert 5 > f(1)", "assert 3 in f(1)", "assert f(1) == 4", "assert all([False])",
    )  # fmt: skip
    assert not any(await verdicts(box, source, tests, QUICK))


NARROW = "import numpy\ndef f(x): return numpy.array([{number}], dtype={kind!r})"


@pytest.mark.parametrize("number", ["numpy.inf", "99976"])
@pytest.mark.parametrize("kind", ["float16", "float32"])
async def test_an_array_of_narrow_numbers_is_not_equal_to_what_it_cannot_hold(box, kind, number):
    """numpy rounds a number to the type of the array that it is compared with: 1e39 becomes infinite."""
    pytest.importorskip("numpy")
    source, tests = (
        NARROW.format(number=number, kind=kind),
        asserts("assert f(1) == 1e39", "assert f(1) == 99999"),
    )
    assert not any(await verdicts(box, source, tests, OPTIONS))
    calls = Calls("f", ((1,), (2,)), (1e39, 99999))
    assert not any(await verdicts(box, source, calls, OPTIONS))


async def test_a_program_does_not_end_the_loop_of_a_test(box):
    tests = asserts("assert all(map(lambda pair: f(pair[0]) == pair[1], [(1, 1), (2, 4)]))")
    assert await verdicts(box, "def f(x): raise StopIteration", tests, OPTIONS) == [False]
    assert await verdicts(box, HONEST, tests, OPTIONS) == [True]


@pytest.mark.parametrize("source", ["def f(x): pass", "f = 5", "class E: pass\ndef f(x): return E()"])
async def test_a_statement_that_fails_by_what_the_program_returns_is_the_programs_fault(box, source):
    tests = asserts("found = f(2)\nmore = found + 1\nassert more == 5")
    assert await verdicts(box, source, tests, OPTIONS) == [False]
    assert await verdicts(box, HONEST, tests, OPTIONS) == [True]


async def test_packages_in_a_folder_for_files_of_the_moment_can_be_imported(box, monkeypatch, tmp_path):
    """A virtual environment below /tmp is not hidden by the program's own folder."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "gauge.py").write_text("VALUE = 7")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(packages)])
    async with Box("bubblewrap", python=box.python) as made:
        tests = Pairs(("",), ("7",))
        assert await verdicts(made, "import gauge\nprint(gauge.VALUE)", tests, OPTIONS) == [True]


async def test_what_tests_expect_is_nowhere_that_a_program_can_read(box):
    source = (
        "import gc, os, sys\ndef f(x):\n  found = [repr(gc.get_objects())]\n"
        "  for folder in ('/box', '/tmp', '/proc/self', '/proc/1'):\n"
        "    for name in os.listdir(folder):\n"
        "      try: found.append(repr(open(f'{folder}/{name}', 'rb').read(1 << 20)))\n"
        "      except OSError: pass\n"
        "  sys.stderr.write('looked' + ' FOUND' * any(''.join(['hem', 'lock']) in text for text in found))\n"
        "  sys.stderr.flush()\n"
    )
    orders = {"kind": "asserts", "tests": ["assert f(1) == 'hemlock'"], "setup": "", "entry": ""}
    limits = ProgramLimits(cpu_s=20, wall_s=60)
    told, outcome = await box.run_pair(
        Job("ask", orders, limits=limits), Job("serve", {"source": source}, limits=limits)
    )
    assert b'"passed": false' in told.stdout
    assert outcome.stderr == b"looked"


async def test_tests_that_are_broken_are_no_fault_of_the_program(box):
    check = "def check(candidate):\n  assert candidate(2) == 4"
    for tests in (
        asserts("assert f(1) =="), asserts("x = 1"), asserts("import not_there\nassert f(1) == 1"),
        asserts(check), asserts(check, entry="f("),
    ):  # fmt: skip
        with pytest.raises(Unscorable):
            await verdicts(box, HONEST, tests, OPTIONS)


async def test_a_reward_is_the_share_or_all_and_a_broken_sandbox_is_none(box, monkeypatch, tmp_path):
    row = {"tests": [{"input": "2", "output": "4"}, {"input": "3", "output": "5"}]}
    answer = "Look:\n```python\nprint(int(input()) ** 2)\n```"
    place = Place("", sandbox="bubblewrap")
    made: list[Box] = []
    monkeypatch.setattr(
        "workers.reward.kinds.code.Box", lambda *a, **k: made.append(Box(*a, **k)) or made[-1]
    )
    share, whole = make(CodeReward(credit="fraction"), place), make(CodeReward(), place)
    assert await share(answer, **row) == 0.5
    assert await whole(answer, **row) == 0.0
    assert await whole(answer, tests=row["tests"][:1]) == 1.0
    assert await whole(answer.replace("python", "bash"), **row) == 0.0
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unscorable, match="apt-get install bubblewrap"):
        await share(answer, **row)
    with pytest.raises(ConfigError, match="limits"):
        make(CodeReward(), Place(""))
    for one in made:  # a reward process keeps its box until it ends
        await one.close()


async def test_a_program_that_uses_up_its_time_twice_is_not_run_again(box, monkeypatch):
    runs = 0
    run = box.run

    async def counted(job, **rest):
        nonlocal runs
        runs += 1
        return await run(job, **rest)

    monkeypatch.setattr(box, "run", counted)
    tests = Pairs(("1",) * 9, ("1",) * 9)
    assert await verdicts(box, "while True: pass", tests, QUICK) == [False] * 9
    assert runs == 2


async def side_by_side(box, count: int) -> None:
    names = sorted(HONEST_ONES)
    cases = [HONEST_ONES[names[number % len(names)]] for number in range(count)]
    together = await asyncio.gather(*(verdicts(box, case[0], case[1], OPTIONS) for case in cases))
    assert together == [case[2] for case in cases]


async def test_verdicts_side_by_side_are_those_one_by_one(box):
    await side_by_side(box, 16)


@pytest.mark.thorough
async def test_two_hundred_verdicts_side_by_side_are_those_one_by_one(box):
    await side_by_side(box, 200)
