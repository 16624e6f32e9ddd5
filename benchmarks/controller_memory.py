"""Bytes of the core: per trajectory in flight, per group that waits for its batch, per instance.

Invariant: the production core in the simulation, stopped at a train step; counted is what can be reached from
a group, or from the core, without its simulated workers. The figure of an instance is the difference of two
runs that differ in their number.
"""

import gc
import platform
import sys
from collections.abc import Iterable
from statistics import fmean
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from controller.config.models import Config
from controller.core.state.progress.columns import Given
from controller.simulation import Simulation
from strategies.batches.prompt_lengths import PromptLengths

STEPS = 3
SHARED = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
OF_THE_INSTANCE = (Given,)  # what it was told, which its responses name


class Held(NamedTuple):
    """What a core holds at its last train step, in bytes and in numbers."""

    core: int
    generating: float  # of a group, for each of its responses
    complete: float


def reachable(roots: Iterable[object], *, without: tuple[type, ...] = ()) -> int:
    """Bytes of all objects that can be reached, code apart, and objects of these classes."""
    seen: set[int] = set()
    left: list[Any] = list(roots)
    total = 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (*SHARED, *without)):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        left += gc.get_referents(one)
    return total


def held(*, instances: int, members: int) -> Held:
    """A run of so many instances, with groups of so many responses."""
    config = Config.model_validate(
        {
            "run": {"steps": STEPS},
            "rollout": {"instances": instances, "group_size": members, "max_response_tokens": 400},
            "trainer": {"batch_groups": 16},
            "staleness": {"max_staleness": 2, "in_flight_batches": "all"},
            "simulation": {"report_s": 5.0},
        }
    )
    simulation = Simulation(config, seed=1, with_digest=False)
    found: list[Held] = []

    def measure() -> None:
        state = simulation.core.state
        if len(simulation.outcome.starts) == STEPS:
            each = [
                fmean(
                    reachable([group], without=OF_THE_INSTANCE) / members
                    for group in state.groups.values()
                    if group.state in states
                )
                for states in (("generating",), ("occupied", "training"))
            ]
            found.append(Held(reachable([state]), *each))

    simulation.on_start = lambda start: measure()
    simulation.run()
    return found[0]


def main() -> None:
    """Print one line for each thing that the core holds."""
    print(f"{platform.machine()}, Python {platform.python_version()}")
    small, fleet = (held(instances=count, members=8) for count in (4, 36))
    print(
        f"response in flight: {small.generating:,.0f} bytes; of a complete group: {small.complete:,.0f} bytes"
    )
    print(f"instance: {(fleet.core - small.core) / 32:,.0f} bytes")
    lengths = PromptLengths()
    for prompt in range(1, 1 + (1 << 16)):
        lengths.observe(prompt * 7919, 0, [100])
    print(f"remembered prompts: {reachable([lengths]):,} bytes for {len(lengths):,}")


if __name__ == "__main__":
    main()
