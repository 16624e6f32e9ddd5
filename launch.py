"""The command line of StaleFlow: `python3 launch.py CONFIG.yaml`.

Invariant: nothing but the standard library is imported before the dependencies are known to be there.
"""

import sys

import install


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    install.ensure(sys.argv[1:])
    from controller.cli import main as command_line

    sys.exit(command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
