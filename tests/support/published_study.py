"""The cells of a published study of another simulator, and ours on its terms."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from controller.config.models import Config
from controller.simulation import Simulation
from controller.simulation.bounds import Demand, shortest_period_s
from controller.simulation.simulated_workers import distribution_of
from strategies.routing import Routing
from strategies.views import InstanceView, Settings, WorkView
from workers.simulated.workload import classes

INSTANCES, BATCH, VERSIONS, SKIP = 16, 512, 41, 10

SYNC_S = 3.0
CAPS = {"lognormal": 16384, "bimodal": 24000, "power_law": 40960, "uniform": 8192}
PUBLISHED = {  # responses/s at bounds 0 (synchronous), 1, 2, 3
    "lognormal": (1.71, 3.46, 4.40, 4.97),
    "bimodal": (1.08, 2.02, 2.55, 3.12),
    "power_law": (0.76, 1.40, 1.90, 2.12),
    "uniform": (2.70, 5.91, 6.73, 7.18),
}
AREAL = {  # at bounds 1, 2, 3, which this rule does not keep
    "lognormal": (5.82, 6.04, 6.04),
    "bimodal": (3.94, 3.98, 3.98),
    "power_law": (3.80, 3.84, 3.79),
    "uniform": (6.74, 7.31, 7.37),
}
DRAWS: dict[str, Callable[[random.Random], int]] = {
    "lognormal": lambda rng: min(16384, max(32, int(rng.lognormvariate(math.log(3000), 0.9)))),
    "power_law": lambda rng: min(40960, max(1200, int(1200 * (1 - rng.random()) ** (-1 / 1.2)))),
    "uniform": lambda rng: rng.randint(512, 8192),
}


def make_config(kind: str, max_staleness: int, *, versions: int = VERSIONS, **staleness: Any) -> Config:
    """One cell; built without the rules between fields, which want groups of two or more."""
    timing = {"publish": "early", "pull_s": 0.0, "train_base_s": SYNC_S}
    return Config.model_validate(
        {
            "run": {"steps": versions},
            "rollout": {
                "instances": INSTANCES,
                "group_size": 1,
                "max_response_tokens": CAPS[kind],
                "max_running": 4096,
            },
            "trainer": {"batch_groups": BATCH},
            "staleness": {
                "max_staleness": max_staleness,
                "in_flight_batches": "all",
                "routing": "least_requests",
                "synchronization": "greedy",
                "migration": "none",
                "partial_rollout": False,
                "keep_kv": True,
            }
            | staleness,
            "controller": {"lease_s": 1e7, "beat_s": 1e6},
            "simulation": {"workload": {"kind": kind}, "report_s": 20.0}
            | (timing if max_staleness else {"publish": "honest"}),
        }
    )


def draw(kind: str, count: int, seed: int) -> list[int]:
    """Response lengths, as that study drew them."""
    rng = random.Random(seed)
    if kind == "bimodal":
        long = round(count * 0.1)
        lengths = [24000] * long + [2000] * (count - long)
        rng.shuffle(lengths)
        return lengths
    return [DRAWS[kind](rng) for _ in range(count)]


def study_simulation(config: Config, *, seed: int, is_reserved: bool) -> Simulation:
    """A run with that study's lengths; `is_reserved`: KV is taken for the final length at once.

    Groups have one response.
    """
    simulation = Simulation(config, seed=seed, with_digest=False)
    count = config.trainer.batch_groups * (config.run.steps + 8)
    lengths = draw(config.simulation.workload.kind, count, seed)
    workload: Any = simulation.cluster.workload
    workload.length = lambda group, member, turn=0: lengths[group % count]
    if is_reserved:
        _reserve(simulation)
    return simulation


def _reserve(simulation: Simulation) -> None:
    """Route to the instance with the fewest responses, and only if the final length of all fits its KV."""
    state: Any = simulation.core.state
    views, workload = simulation.core.views, simulation.cluster.workload

    def route(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
        del settings
        least = min(views.shown.values(), key=lambda one: (one.running, one.id))
        need = workload.prompt_tokens + workload.length(work.group, 0)
        if least.expected_tokens + need > least.kv_tokens:
            return None
        return least.id if any(one.id == least.id for one in instances) else None

    state.expected_tokens = lambda group, trajectory: workload.length(group.id, trajectory.id.member)
    state.strategies = replace(state.strategies, route=Routing(route))


def bounded_cluster(
    kind: str, cap: int, *, max_staleness: int = 0, pull_s: float = 0.0, publish: str = "early", **engine: Any
) -> Config:
    """The cluster whose bounds the study prints: 16 instances, batches of 512 responses."""
    return Config.model_validate(
        {
            "rollout": {"instances": 16, "group_size": 1, "max_response_tokens": cap, "max_running": 4096},
            "trainer": {"batch_groups": 512},
            "staleness": {"max_staleness": max_staleness},
            "simulation": {
                "workload": {"kind": kind}, "pull_s": pull_s, "publish": publish, "engine": engine
            },
        }
    )  # fmt: skip


def bound_in_equal_classes(config: Config) -> float:
    """The bound with the lengths in 50 equally likely classes, as that study has them."""
    lengths = tuple(classes(distribution_of(config).sample(), 50))
    demand = replace(Demand.of(config), classes=lengths)
    return demand.batch / shortest_period_s(demand, config.staleness.max_staleness)
