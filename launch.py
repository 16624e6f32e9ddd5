"""The command line of StaleFlow: `python3 launch.py CONFIG.yaml`.

Invariants: only the standard library and `install` are imported before the dependencies are known to be
installed; Ctrl-C ends the program with a line of text and exit code 130, from the first line on.
"""

import contextlib
import os
import signal
import sys

STOPPED = 130

if sys.version_info < (3, 11):  # noqa: UP036  # read by users of older versions
    sys.exit(f"This is Python {sys.version.split()[0]}; expected 3.11 or newer. Start launch.py with that.")

if sys.platform == "win32":
    sys.exit("This is Windows; expected Linux, also as WSL 2 or in a container. Start launch.py there.")

if sys.flags.optimize > 1:
    sys.exit(
        "Python takes docstrings away here (-OO, or PYTHONOPTIMIZE=2), which transformers reads; expected "
        "Python without that. Unset PYTHONOPTIMIZE, leave out -OO, and start again."
    )


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while one launch.py became another
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path.insert(0, here)  # PYTHONSAFEPATH=1 leaves it out; `-m launch` puts the working directory first
    import install
    from install.standard_output import open_closed_streams, told_if_refused

    open_closed_streams()
    try:
        os.getcwd()
    except OSError as error:  # such as one that was removed meanwhile
        print(
            f"The working directory cannot be used: {error.strerror}. Change into another, and start again.",
            file=sys.stderr,
        )
        sys.exit(2)
    with told_if_refused():
        install.ensure(sys.argv[1:])
        try:
            from controller.cli.main import main as command_line
        except ImportError as error:
            if not install.is_of_others(error):
                raise
            sys.exit(install.why_not_imported(error))
        from protocol.importing import put_users_first

        put_users_first()
        code = command_line(sys.argv[1:])
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """End at once on Ctrl-C before and after a command, as imported code could swallow an exception."""
    with contextlib.suppress(OSError):  # the reader may be gone
        os.write(2, b"\nStopped.\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
