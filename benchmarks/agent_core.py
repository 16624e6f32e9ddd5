"""What the core takes for an event with many agents, in CPU time.

    python -m benchmarks.agent_core                        128 instances, 8,192 episodes
    python -m benchmarks.agent_core --instances 16 --groups 64

Simulated workers, an environment that takes as long as a turn. The first events, which attach workers and
begin the first episodes, are left out, and so is everything but `Core.step`. Python's garbage collector is
set as in a run.
"""

import argparse
import time
from contextlib import suppress

from controller.config.models import Config
from controller.core.state.agents.episodes import LIVE_GROUPS
from controller.host.collector import rare_collections
from controller.simulation.host import Simulation

GROUP_SIZE, BOUND = 16, 1


class Timed:
    """A core's `step` with a clock at its side."""

    def __init__(self, simulation: Simulation, skipped: int) -> None:
        self._core, self._step, self._skipped = simulation.core, simulation.core.step, skipped
        self.events, self.cpu_s, self.live = 0, 0.0, 0

    def step(self, now, event):
        """As the core's, and timed."""
        began = time.process_time_ns()
        commands = self._step(now, event)
        spent = time.process_time_ns() - began
        self.events += 1
        if self.events > self._skipped:
            self.cpu_s += spent / 1e9
            if self.events % 1000 == 0:
                live = (group for group in self._core.state.groups.values() if group.state in LIVE_GROUPS)
                self.live = max(self.live, sum(len(group.episodes) for group in live))
        return commands


def config_for(instances: int, groups: int) -> Config:
    """`groups` of episodes in flight."""
    return Config.model_validate({
        "run": {"steps": 100},
        "rollout": {
            "instances": instances, "group_size": GROUP_SIZE, "max_running": 128,
            "max_prompt_tokens": 8000, "max_response_tokens": 512,
        },
        "agent": {"function": "simulated", "concurrency": 2 * groups * GROUP_SIZE},
        "trainer": {"batch_groups": groups // (BOUND + 1)},
        "staleness": {"max_staleness": BOUND, "in_flight_batches": "all"},
        "simulation": {
            "workload": {"median_tokens": 100},
            "environment": {"turns": 8, "given_tokens": 64, "wait_s": 1.5, "start_s": 0.1},
            "train_token_s": 1e-6, "pull_s": 0.5,
        },
    })  # fmt: skip


def main() -> None:
    """Print the mean over the events behind the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, default=128)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--skipped", type=int, default=20_000)
    chosen = parser.parse_args()
    simulation = Simulation(config_for(chosen.instances, chosen.groups), with_digest=False)
    timed = Timed(simulation, chosen.skipped)
    simulation.decide = timed.step
    with rare_collections(), suppress(RuntimeError):  # it has no end within so many events
        simulation.run(max_events=chosen.events)
    count = timed.events - chosen.skipped
    print(
        f"{chosen.instances} instances, {timed.live} live episodes: "
        f"{1e6 * timed.cpu_s / count:.0f} us an event, mean of {count}"
    )


if __name__ == "__main__":
    main()
