"""Runs a program as `python program.py` would, with the standard input and output of the process."""

import errno
import sys
import types

MEMORY, FILE, PROCESSES = 119, 118, 117  # exit codes, as SAID in supervisor.py
CODES = {
    errno.ENOMEM: MEMORY,
    errno.EFBIG: FILE,
    errno.ENOSPC: FILE,
    errno.EAGAIN: PROCESSES,
}


def main(orders):
    """Never returns if the program ends the process."""
    module = types.ModuleType("__main__")
    module.__file__ = "program.py"
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    try:
        exec(compile(orders["source"], "program.py", "exec"), module.__dict__)
    except (MemoryError, OSError) as error:
        code = MEMORY if isinstance(error, MemoryError) else CODES.get(error.errno or 0, 1)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(code)
