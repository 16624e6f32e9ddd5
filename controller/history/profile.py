"""Fits the cost model of a run's instances to its history.

Invariant: the run is only read; equal histories give equal coefficients.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from controller.core.events import Event, Received
from controller.durability.recording import Recording
from controller.history.shortened import names_at_the_beginning
from protocol.errors import RunError
from protocol.ids import PeerId
from protocol.messages import Attach, InstanceStatus
from strategies.cost_model import Coefficients
from strategies.fitting import OnlineFit


class Fitted(NamedTuple):
    """A fitted cost model; `error`: mean relative error of predicting each of the last hundred intervals."""

    coefficients: Coefficients
    error: float
    observations: int


class Profile(NamedTuple):
    """The cost model of a run."""

    together: Fitted  # one fit for all instances
    workers: dict[str, Fitted]  # by name, over all lives of its process; for unlike instances


def profile(run: str | Path) -> Profile:
    """The coefficients from a run's status reports, for later runs on the same machines.

    `run`: a run directory or its run.db. Raises: RunError if it cannot be read, or has no decode steps.
    """
    with Recording(run) as recording:
        reports = Reports(names_at_the_beginning(recording))
        for recorded in recording.events():
            reports.take(recorded.event)
        return reports.profile(recording.path)


class Reports:
    """Fits the cost model event by event."""

    def __init__(self, names: Mapping[PeerId, str] = MappingProxyType({})) -> None:
        """`names`: of workers that attached before the first event."""
        self._names = dict(names)
        self._latest: dict[PeerId, InstanceStatus] = {}
        self._together, self._fits = OnlineFit(), dict[str, OnlineFit]()

    def take(self, event: Event) -> None:
        """One event of the history."""
        match event:
            case Received(peer, Attach() as attach):
                self._names[peer] = attach.name
            case Received(peer, InstanceStatus() as status):
                if peer in self._latest:
                    name = self._names.get(peer, peer)
                    self._together.observe(self._latest[peer], status)
                    self._fits.setdefault(name, OnlineFit()).observe(self._latest[peer], status)
                self._latest[peer] = status
            case _:
                pass

    def profile(self, path: str) -> Profile:
        """The fitted cost model of the run at `path`. Raises: RunError if no report could be used."""
        if not self._together.observations:
            raise RunError(
                f"{path} tells nothing about the cost of decode steps: none of its {len(self._latest)} "
                "rollout instances reported twice with decode steps in between. Expected a run that "
                "generated for some seconds; profile a longer one."
            )
        workers = {name: _fitted(fit) for name, fit in self._fits.items() if fit.observations}
        return Profile(_fitted(self._together), workers)


def in_words(profile: Profile) -> str:
    """One line for all instances together and one for each."""
    rows = [("all instances", profile.together), *profile.workers.items()]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"{name:<{width}}  {fitted.observations} intervals, mean error {fitted.error:.1%}, "
        + ", ".join(f"{name} {value:.4g}" for name, value in fitted.coefficients._asdict().items())
        for name, fitted in rows
    )


def _fitted(fit: OnlineFit) -> Fitted:
    assert fit.error is not None
    return Fitted(fit.coefficients, fit.error, fit.observations)
