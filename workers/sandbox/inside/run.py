"""Runs a program as `python program.py` would, with the standard input and output of the process."""

import errno
import mmap
import sys
import traceback
import types

MEMORY, FILE, PROCESSES = 119, 118, 117  # exit codes, as SAID in supervisor.py
RESERVE = 8 << 20  # bytes of address space, so that a program that has taken all can still be told of
CODES = {
    errno.ENOMEM: MEMORY,
    errno.EFBIG: FILE,
    errno.ENOSPC: FILE,
    errno.EAGAIN: PROCESSES,
}


def main(orders):
    """Run the program; never returns if the program ends the process."""
    module = types.ModuleType("__main__")
    module.__file__ = "program.py"
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    reserve = mmap.mmap(-1, RESERVE)
    try:
        exec(compile(orders["source"], "program.py", "exec"), module.__dict__)
    except (MemoryError, OSError, RuntimeError) as error:
        reserve.close()
        code = CODES.get(getattr(error, "errno", None) or 0, 1)
        if isinstance(error, MemoryError):
            code = MEMORY
        elif "can't start new thread" in str(error):
            code = PROCESSES
        traceback.print_exception(error)
        sys.stderr.flush()
        sys.exit(code)
