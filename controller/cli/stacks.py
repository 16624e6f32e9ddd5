"""`launch.py stacks RUN`: writes the stacks of a run's processes, to see where it hangs."""

from pathlib import Path

from controller.cli.command_line import Run
from controller.cli.say import say
from controller.view.stacks import ask, of_run


def stacks(run: Run) -> None:
    """Write the stacks of all threads of the controller and of every local worker to their logs.

    A worker that was attached by hand writes its stacks on `kill -USR1 PID`.
    """
    for found in of_run(Path(run)):
        name, trouble = f"{found.name} (pid {found.pid})", ask(found)
        say(f"{name} {trouble}" if trouble else f"{name}: its stacks are at the end of {found.log}")
