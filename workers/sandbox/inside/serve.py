"""Loads a program as a module, and calls its functions for the tests.

Expected results never come here, unless a test itself passes them to the program as arguments.
"""

import os
import sys
import traceback
import types

from peer import Gone, Peer, Raised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MUTABLE = (list, dict, set, bytearray)


class Program:
    """The program's module, and its objects that tests refer to by number."""

    def __init__(self, source):
        self._source = source
        self._module = types.ModuleType("solution")
        self._objects = []
        self._peer = Peer(self._perform, self._hand, self._take)

    def serve(self):
        """Serve until the tests end."""
        try:
            self._peer.serve()
        except Gone:
            os._exit(0)

    def _perform(self, request):
        kind, *rest = request
        try:
            return ["answer", getattr(self, f"_do_{kind}")(*rest)]
        except BaseException as error:  # any exception of the program is reported to the tests
            if isinstance(error, Raised):
                return ["raised", error.kind, error.text[:2000]]
            if kind in ("load", "call"):
                traceback.print_exc()
            return ["raised", type(error).__name__, str(error)[:2000]]

    def _do_load(self, _):
        """The names that the program defines."""
        sys.modules["solution"] = self._module
        exec(compile(self._source, "program.py", "exec"), self._module.__dict__)
        return list(self._module.__dict__)

    def _do_name(self, name):
        return self._peer.encode(getattr(self._module, name))

    def _do_call(self, target, arguments, named):
        values = [self._peer.decode(argument) for argument in arguments]
        keywords = {name: self._peer.decode(value) for name, value in named.items()}
        result = self._peer.encode(self._peer.decode(target)(*values, **keywords))
        changed = []
        for index, (value, argument) in enumerate(zip(values, arguments, strict=True)):
            if isinstance(value, MUTABLE) and (now := self._peer.encode(value)) != argument:
                changed.append([index, now])
        return [result, changed]

    def _do_get(self, target, name):
        return self._peer.encode(getattr(self._peer.decode(target), name))

    def _do_set(self, target, name, value):
        setattr(self._peer.decode(target), name, self._peer.decode(value))

    def _do_item(self, target, key):
        return self._peer.encode(self._peer.decode(target)[self._peer.decode(key)])

    def _do_put(self, target, key, value):
        self._peer.decode(target)[self._peer.decode(key)] = self._peer.decode(value)

    def _do_length(self, target):
        return len(self._peer.decode(target))

    def _do_iterate(self, target):
        return self._hand(iter(self._peer.decode(target)))

    def _do_next(self, target):
        for item in self._peer.decode(target):
            return [self._peer.encode(item)]
        return []

    def _do_truth(self, target):
        return bool(self._peer.decode(target))

    def _hand(self, value) -> "Any":
        self._objects.append(value)
        return {"object": len(self._objects) - 1}

    def _take(self, kind, number) -> "Any":
        if kind == "object":
            return self._objects[number]
        if kind != "function":
            raise ValueError(kind)

        def call(*arguments):
            return self._peer.decode(
                self._peer.ask("call", number, [self._peer.encode(a) for a in arguments])
            )

        return call


def main(orders):
    """Serve the tests; never returns."""
    Program(orders["source"]).serve()
