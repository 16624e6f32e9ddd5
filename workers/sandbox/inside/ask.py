"""Runs tests on a program in another process, and writes a verdict for each.

Invariants: comparisons are made here, on plain data; no code of the program runs here. Standard output has
lines of JSON: first the number of tests, then one per test.
"""

import ast
import builtins
import importlib
import json
import math
import os
import sys
import types

from peer import Gone, Peer, Raised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHORT = {"np": "numpy", "pd": "pandas"}
GONE = "The program ended, or was ended."
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Object:
    """A reference to an object in the program's process.

    It has no comparisons and no arithmetic: they would be the program's own, which could forge a test's
    result.
    """

    def __init__(self, tests, reference):
        object.__setattr__(self, "_tests", tests)
        object.__setattr__(self, "_reference", reference)

    def __call__(self, *arguments, **named):
        return self._tests.call(self._reference, arguments, named)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._tests.ask("get", self._reference, name)

    def __setattr__(self, name, value):
        self._tests.ask("set", self._reference, name, self._tests.encode(value))

    def __getitem__(self, key):
        return self._tests.ask("item", self._reference, self._tests.encode(key))

    def __setitem__(self, key, value):
        self._tests.ask("put", self._reference, self._tests.encode(key), self._tests.encode(value))

    def __len__(self):
        return int(self._tests.ask("length", self._reference))

    def __bool__(self):
        return self._tests.ask("truth", self._reference) is True

    def __iter__(self):
        walk = self._tests.ask("iterate", self._reference)
        while item := self._tests.ask("next", walk._reference):
            yield item[0]

    def __next__(self):
        item = self._tests.ask("next", self._reference)
        if not item:
            raise StopIteration
        return item[0]


class Tests:
    """The tests' end of the connection to the program."""

    def __init__(self):
        self._functions = []
        self._peer = Peer(self._perform, self._hand, self._take)
        self.encode = self._peer.encode
        self.calls = 0

    def ask(self, *request) -> "Any":
        """The program's answer. Raises: Gone; the program's exception, as Python's own of that name."""
        self.calls += 1
        try:
            return self._peer.decode(self._peer.ask(*request))
        except Raised as error:
            kind = getattr(builtins, error.kind, None)
            is_end = kind in (StopIteration, StopAsyncIteration)  # it would end a loop of the test in silence
            if isinstance(kind, type) and issubclass(kind, Exception) and not is_end:
                try:
                    raised = kind(error.text)
                except TypeError:  # UnicodeDecodeError and such want more
                    raised = error
                raise raised from None
            raise

    def call(self, target, arguments, named):
        """The result of a call; the program's changes to its arguments are applied to these."""
        sent = [self.encode(argument) for argument in arguments]
        words = {name: self.encode(value) for name, value in named.items()}
        result, changed = self.ask("call", target, sent, words)
        for index, now in changed:
            _become(arguments[index], now)
        return result

    def _perform(self, request):
        """Perform a request of the program, which may only call functions that a test passed to it."""
        try:
            _, number, arguments = request
            return ["answer", self.encode(self._functions[number](*map(self._peer.decode, arguments)))]
        except Exception as error:
            return ["raised", type(error).__name__, str(error)]

    def _hand(self, value):
        if type(value) is Object:
            return value._reference
        if callable(value) and not isinstance(value, type):
            self._functions.append(value)
            return {"function": len(self._functions) - 1}
        raise TypeError(f"a test gives the program {type(value).__name__}, which is no plain data")

    def _take(self, kind, value):
        if kind != "object" or type(value) is not int:
            raise ValueError(kind)
        return Object(self, {kind: value})


def _become(value, now):
    if isinstance(value, list | bytearray) and type(now) is type(value):
        value[:] = now
    elif isinstance(value, dict | set) and type(now) is type(value):
        value.clear()
        value.update(now)


def split(texts):
    """The statements of the tests, each with whether it is a test."""
    statements = []
    for text in texts:
        body = ast.parse(text).body
        checks = {node.name for node in body if isinstance(node, FUNCTIONS[:2]) and _asserts(node)}
        body = [one for node in body for one in _unguarded(node, checks)]
        called = {name for node in body if not isinstance(node, FUNCTIONS) for name in _called(node)}
        uncalled = sorted(name for name in checks - called if name.startswith(("test", "check")))
        for node in body:
            is_test = not isinstance(node, FUNCTIONS) and (
                _asserts(node) or not checks.isdisjoint(_called(node))
            )
            statements.append((node, is_test))
        waited = {node.name for node in body if isinstance(node, ast.AsyncFunctionDef)}
        for name in uncalled:
            call = f"{name}({'candidate' if name == 'check' else ''})"
            call = f"__import__('asyncio').run({call})" if name in waited else call
            statements.append((ast.parse(call).body[0], True))
    return statements


def _unguarded(node, checks):
    """The node; for `if __name__ == "__main__":`, which never holds here, its body if it has tests."""
    if not (isinstance(node, ast.If) and "__name__" in _names(node.test)):
        return [node]
    return node.body if _asserts(node) or not checks.isdisjoint(_called(node)) else []


def _asserts(node):
    return any(isinstance(one, ast.Assert) for one in ast.walk(node))


def _called(node):
    return {
        one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
    }


def _names(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def entered_by(entry, statements):
    """The names in `entry`, an expression such as `f` or `Solution().f` that the tests call `candidate`.

    Raises: ValueError if the tests need one and this is none.
    """
    needed = any("candidate" in _names(node) for node, _ in statements if not isinstance(node, FUNCTIONS))
    try:
        names = _names(ast.parse(entry, mode="eval")) if entry else set()
    except SyntaxError:
        names = set()
    if needed and not names:
        raise ValueError(f"They are about `candidate`, and the row's `entry_point` is {entry!r:.80}.")
    return names


def names_of(statements, tests, entry, entered):
    """Load the program; the names that tests may use besides their own: its objects, and modules."""
    trees = [node for node, _ in statements]
    defined = set(tests.ask("load", 0))
    loaded = set().union(*map(_names, trees))
    called = set().union(*map(_called, trees), entered)
    found = {}
    for name in sorted({*loaded, *entered}):
        module = SHORT.get(name, name)
        if name not in called and (name in SHORT or name in sys.stdlib_module_names):
            try:
                found[name] = importlib.import_module(module)
            except ImportError:
                continue
        elif name in defined and (name in entered or not hasattr(builtins, name)):
            found[name] = tests.ask("name", name)
    if entered and entered <= found.keys():
        found["candidate"] = eval(compile(entry, "tests", "eval"), dict(found))
    return found


def run_statements(texts, setup, entry, say):
    """Each assertion, or function of assertions, is a test; a failing statement fails the tests after it.

    If it fails before anything of the program was used, the tests are to blame.
    """
    statements = [(node, False) for node in ast.parse(setup).body] + split(texts)
    try:
        entered = entered_by(entry, statements)
    except ValueError as error:
        return say(error=str(error))
    say(count=sum(is_test for _, is_test in statements))
    tests = Tests()
    space = {"__name__": "tests"}
    broken, of_program, used = "", set(), set()
    try:
        found = names_of(statements, tests, entry, entered)
        of_program = {name for name, value in found.items() if not isinstance(value, types.ModuleType)}
        space |= found
        sys.modules["solution"] = module = types.ModuleType("solution")
        module.__getattr__ = lambda name: tests.ask("name", name)
    except Gone:
        broken = GONE
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    before = tests.calls
    for node, is_test in statements:
        used |= _names(node) & of_program
        try:
            if not broken:
                exec(compile(ast.Module([node], []), "tests", "exec"), space)
        except Gone:
            broken = GONE
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            if not is_test:
                if tests.calls == before and not used and not isinstance(error, NameError):
                    return say(error=why)
                broken = why
            else:
                say(passed=False, why=why)
                continue
        if is_test:
            say(passed=not broken, why=broken)


def run_calls(function, calls, tolerance, say):
    """Each call with its arguments and expected result is a test."""
    say(count=len(calls))
    tests, broken = Tests(), ""
    target: Any = None
    try:
        defined = tests.ask("load", 0)
        if function not in defined and "Solution" in defined:
            target = getattr(tests.ask("name", "Solution")(), function)
        else:
            target = tests.ask("name", function)
    except Gone:
        broken = GONE
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    for call in calls:
        why = broken
        try:
            if not broken:
                found = target(*call["arguments"])
                why = "" if is_expected(found, call["expected"], tolerance) else f"{found!r:.200} is wrong"
        except Gone:
            why = broken = GONE
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        say(passed=not why, why=why)


def is_expected(found, expected, tolerance):
    """Whether the result is as expected; some data sets (APPS) wrap each result in a list of one."""
    if equal(found, expected, tolerance):
        return True
    return isinstance(expected, list) and len(expected) == 1 and equal(found, expected[0], tolerance)


def equal(found, expected, tolerance):
    """Whether both are the same data; JSON has no tuples, and its keys are text."""
    if isinstance(found, list | tuple) and isinstance(expected, list):
        return len(found) == len(expected) and all(equal(*pair, tolerance) for pair in zip(found, expected))  # noqa: B905  # old Pythons
    if isinstance(found, dict) and isinstance(expected, dict):
        found = {key if isinstance(key, str) else json.dumps(key): value for key, value in found.items()}
        return found.keys() == expected.keys() and all(equal(found[k], expected[k], tolerance) for k in found)
    if tolerance and isinstance(found, int | float) and isinstance(expected, int | float):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return type(found) is not Object and bool(found == expected)


def main(orders):
    """Run the tests; never returns."""
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line):
        verdicts.write(json.dumps(line) + "\n")
        verdicts.flush()

    if orders["kind"] == "asserts":
        run_statements(orders["tests"], orders["setup"], orders["entry"], say)
    else:
        run_calls(orders["function"], orders["calls"], orders["tolerance"], say)
    os._exit(0)
