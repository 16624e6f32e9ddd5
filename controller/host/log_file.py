"""logs/controller.log of a run, which only the run's user may read: it quotes prompts and responses."""

import logging
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path

from protocol.private_files import for_owner_only
from protocol.stacks import dump_on_signal


class OwnersLog(logging.FileHandler):
    """A log that is its owner's alone from its first byte on."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=for_owner_only)


def log_to_file(path: Path, *, level: str, stack: ExitStack) -> None:
    """Write what the controller logs to this file too, until `stack` closes.

    So are the stacks that a signal asks for.
    """
    handler = OwnersLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("staleflow")
    root.setLevel(level.upper())
    root.addHandler(handler)
    stack.callback(handler.close)
    stack.callback(root.removeHandler, handler)
    if (forget := dump_on_signal(handler.stream)) is not None:
        stack.callback(forget)
