"""`launch.py compile`: compiles the core, for runs of hundreds of instances and for long simulations."""

from controller.cli.say import say
from controller.compiled.build import build


def compile_core() -> None:
    """Compile the core with mypyc: runs of this environment decide twice as fast, and decide the same."""
    say("Compiling the core: some two minutes.")
    say(f"Done: {build()}. Runs use it from now on, until a line of the sources is changed.")
