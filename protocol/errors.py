"""The whole exception tree of the project.

Invariant: every message says what happened (with values), what was expected, and what to do.
A peer's fault never crosses the core as an exception: the edge turns a RemoteError into an event.
"""

from typing import cast


class StaleFlowError(Exception):
    """Base of everything that the project raises on purpose."""


class ConfigError(StaleFlowError):
    """The user's configuration or command line cannot work. Exit code 2."""


class NoAnswer(ConfigError):
    """Nobody answers at an address; a controller that is being started again may do so later."""

    EXIT_CODE = 75
    """Of a worker that was given an endpoint: who started it may try again (EX_TEMPFAIL of sysexits.h)."""


class RunError(StaleFlowError):
    """The run ended without success; the text names the first cause. Exit code 1."""


class OtherRelease(RunError):
    """A file was written by a release whose files this one does not read."""


class BeingWritten(RunError):
    """Another living process writes the same policy version into the same folder."""


class PluginError(RunError):
    """A function of the user's raised, or answered what cannot be; names the key, the file and the line."""


class NotFinite(RunError):
    """Optimizer steps in a row were not finite: another trainer would get the same batch, and fail alike."""


class RankLost(RunError):
    """Another rank of the trainer was lost, and left no word why."""


class Unanswered(RunError):
    """A process that was asked a question took too long or ended; the text says which."""


class RemoteError(StaleFlowError):
    """A peer broke the protocol: malformed, oversize, unknown or contradictory message."""


class LocalError(StaleFlowError):
    """A caller in this process misused an interface: a programming error on this side of the wire."""


class WeightsError(StaleFlowError):
    """A policy version cannot be read: retired, truncated, or its checksum differs from the published one."""


class SourcesUnreachable(WeightsError):
    """No source of a policy version could be reached, or none answered: maybe the network is to blame."""


class NoRoom(WeightsError):
    """This host cannot keep a policy version: no source is to blame, nor who has published it."""


def first_cause(error: BaseException) -> BaseException:
    """The error that was raised first in a group, of any depth; the error itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
