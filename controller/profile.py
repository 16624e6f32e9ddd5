"""Reads the cost model of a run's instances out of its history.

Invariant: the run is only read; equal histories give equal coefficients.
"""

from pathlib import Path
from typing import NamedTuple

from controller.events import Received
from controller.recording import Recording
from protocol.errors import RunError
from protocol.ids import PeerId
from protocol.messages import Attach, InstanceStatus
from strategies.cost_model import Coefficients
from strategies.fitting import OnlineFit


class Fitted(NamedTuple):
    """What reports told; `error`: mean relative error of predicting each of the last hundred intervals."""

    coefficients: Coefficients
    error: float
    observations: int


class Profile(NamedTuple):
    """The cost model of a run."""

    together: Fitted  # all instances taken as alike
    workers: dict[str, Fitted]  # by name, each life of its process counted with the others; for unlike ones


def profile(run: str | Path) -> Profile:
    """The coefficients that a run's status reports tell, for later runs on the same machines.

    `run`: a run directory or its run.db. Raises: RunError if it cannot be read, or has no decode steps.
    """
    names: dict[PeerId, str] = {}
    latest: dict[PeerId, InstanceStatus] = {}
    together, fits = OnlineFit(), dict[str, OnlineFit]()
    with Recording(run) as recording:
        for recorded in recording.events():
            match recorded.event:
                case Received(peer, Attach() as attach):
                    names[peer] = attach.name
                case Received(peer, InstanceStatus() as status):
                    if peer in latest:
                        together.observe(latest[peer], status)
                        fits.setdefault(names.get(peer, peer), OnlineFit()).observe(latest[peer], status)
                    latest[peer] = status
        path = recording.path
    if not together.observations:
        raise RunError(
            f"{path} tells nothing about the cost of decode steps: none of its {len(latest)} rollout "
            "instances reported twice with decode steps in between. Expected a run that generated for some "
            "seconds; profile a longer one."
        )
    workers = {name: _fitted(fit) for name, fit in fits.items() if fit.observations}
    return Profile(_fitted(together), workers)


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
