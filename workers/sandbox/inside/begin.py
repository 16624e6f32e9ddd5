"""Drops privileges that only the sandbox's start needed, reports the start, and runs the script.

`python begin.py SCRIPT`, with `SCRIPT.py` and `orders.json` beside it, and descriptor 3 to the supervisor.
Invariant: no code that a model wrote runs before the byte is written there, so only a working sandbox writes
it.
"""

import builtins
import importlib
import json
import os
import resource
import sys
from _sitebuiltins import Quitter

STARTED = 3


def begin():
    """Returns when the script does."""
    script, folder = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
    with open(f"{folder}/orders.json", encoding="utf-8") as file:
        orders = json.load(file)
    if orders["user"]:
        os.setgroups([])
        os.setresgid(orders["user"], orders["user"], orders["user"])
        os.setresuid(orders["user"], orders["user"], orders["user"])
    sys.path[:] = [*sys.path, *orders["paths"]]
    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")
    os.umask(0o077)
    for name, most in orders["limits"].items():
        if most or name == "RLIMIT_CORE":
            margin = name == "RLIMIT_CPU"  # between the signal that says so and the one that cannot be caught
            resource.setrlimit(getattr(resource, name), (most, most + margin))
    os.write(STARTED, b"+")
    os.close(STARTED)
    sys.path.insert(0, folder)
    main = importlib.import_module(script).main
    sys.path.pop(0)
    main(orders)


begin()
