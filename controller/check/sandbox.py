"""Checks whether the sandbox works here, by running a program in it.

Invariant: the program runs in the sandbox of the configuration, started by another process.
"""

from collections.abc import Iterator

from controller.check.data import Remark
from controller.config.models import Config
from protocol.asking import ask
from protocol.errors import Unanswered

KEY = "reward.sandbox"
LIMIT_S = 90.0  # the trial itself has 60 s


def sandbox_remarks(config: Config) -> Iterator[Remark]:
    """Remarks on the sandbox of rewards that run programs, if this machine has reward workers."""
    if config.trainer.is_supervised or not config.reward.workers:
        return
    labels = [entry.label for entry in config.reward.entries if entry.kind == "code"]
    if not labels:
        return
    choice = config.reward.sandbox
    try:
        problem = ask("workers.sandbox.probe", {"choice": choice}, limit_s=LIMIT_S)
    except Unanswered as error:
        problem = f"the sandbox `{choice}` was tried, and the process {error}."
    if problem:
        yield "error", KEY, problem
    else:
        held = (
            "see docs/sandbox.md for what it does not hold" if choice == "limits" else "bubblewrap holds it"
        )
        yield "note", KEY, f"a program has run in the sandbox that `{labels[0]}` uses; {held}."
