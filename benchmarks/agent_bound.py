"""Episodes per second that no scheduler exceeds where episodes wait for environments.

Invariants: what is counted is what every scheduler has to spend on the episodes that a run has trained; a
group is begun under the version that is the newest then, and groups are trained in the batches in which the
run had them. A scheduler that knew all lengths beforehand could train slow groups together; none here does.

A batch begins at most `max_staleness` steps behind the first version of its groups, so its longest episode
has (`max_staleness` + 1) periods, less what goes by until a new version is on an instance. Such an episode is
given an instance for itself, its home for all of its turns, that never pulls: it decodes at the speed of one
row, prefills what its environment gives and nothing twice, not even its prompt, and waits for its
environment. What instances and trainer can do at all is the program of controller/simulation/bounds.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from controller.config.models import Config
from controller.simulation.bounds import Demand, shortest_period_s, with_tail
from controller.simulation.charges import train_token_s
from controller.simulation.host import Simulation
from controller.simulation.records import TrainStart
from controller.simulation.simulated_workers import Simulated
from protocol.ids import PeerId
from protocol.messages import Role, Segment
from workers.simulated import SimulatedAgent, StepCost

CLASSES, TAIL_CLASSES = 24, 8


class Played(NamedTuple):
    """One episode that was trained."""

    sampled: tuple[int, ...]  # tokens of each turn
    given: tuple[int, ...]  # tokens before each turn but the first
    waited_s: float  # in all, a wait behind each turn


class Batch(NamedTuple):
    """What the trainer got at once."""

    at_s: float
    episodes: list[Played]


class Watched(Simulation):
    """A simulation that keeps what its batches were made of; nothing in it may fail or fork."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed=seed, with_digest=False)
        self.batches: list[Batch] = []
        self.on_start = self._keep
        self._wait_s = config.simulation.environment.wait_s

    def adopt(self, peer: PeerId, name: str, role: Role, worker: Simulated) -> None:
        """Enter a worker; the agent's knows how long environments take."""
        if isinstance(worker, SimulatedAgent):
            self._agent = worker
        super().adopt(peer, name, role, worker)

    def _keep(self, start: TrainStart) -> None:
        groups = [self.core.state.groups[id] for id in start.groups]
        played = [
            self._played(member.segments, (group.id, number, group.episodes[number].trial))
            for group in groups
            for number, member in enumerate(group.members)
        ]
        self.batches.append(Batch(start.at_s, played))

    def _played(self, segments: list[Segment], key: tuple[int, int, int]) -> Played:
        given, sampled = [], []
        for segment in segments:
            if segment.is_given:
                given.append(segment.count)
                sampled.append(0)
            else:
                sampled[-1] += segment.count
        waits = (self._agent.takes_s(key, asked, self._wait_s) for asked in range(1, len(sampled) + 1))
        return Played(tuple(sampled), tuple(given[1:]), sum(waits))


def alone_s(episode: Played, cost: StepCost, prompt_tokens: int) -> float:
    """Seconds that its turns take on an idle instance which has the KV of its prompt and all turns before.

    The step that prefills a turn samples its first token.
    """
    seconds, context = 0.0, prompt_tokens - 1  # tokens there; the newest one is computed with what follows
    for sampled, given in zip(episode.sampled, (0, *episode.given), strict=True):
        seconds += cost.mixed_s([(given + 1, context)], 0, 0)
        seconds += cost.stretch_s(1, context + given + 2, sampled - 1)
        context += given + sampled
    return seconds


def demand_of(config: Config, episodes: Sequence[Played]) -> Demand:
    """What such episodes demand."""
    demand = Demand.of(config)
    sampled = [sum(one.sampled) for one in episodes]
    given = fmean(sum(one.given) for one in episodes)
    tokens = demand.prompt_tokens + given + fmean(sampled)
    train_s = config.simulation.train_base_s + train_token_s(config) * demand.batch * tokens
    return replace(
        demand,
        classes=with_tail(sorted(sampled), CLASSES, TAIL_CLASSES),
        prompt_tokens=round(demand.prompt_tokens + given / 2),
        prefill_tokens=demand.prefill_tokens + given,
        held_tokens=demand.held_tokens + given / 2,
        train_s=train_s,
        lost_s=demand.lost_s + train_s - demand.train_s,
    )


def share_of_bound(config: Config, batches: Sequence[Batch], skipped: int) -> float:
    """What the batches behind the first ones had to take at least, of the time that they took.

    The time of a batch is the window of its groups: from where training for their version began to its start.
    """
    most, used = config.staleness.max_staleness, range(skipped, len(batches))
    assert skipped > most, "the first batches have no window behind them"
    demand = demand_of(config, [episode for number in used for episode in batches[number].episodes])
    prompt, least_s = Demand.of(config).prompt_tokens, (most + 1) * shortest_period_s(demand, most)

    def longest_s(batch: Batch) -> float:
        return max(one.waited_s + alone_s(one, demand.cost, prompt) for one in batch.episodes)

    needed_s = fmean(longest_s(batches[number]) for number in used) + demand.lost_s
    took_s = fmean(batches[number].at_s - batches[number - most - 1].at_s for number in used)
    return max(needed_s, least_s) / took_s
