"""Makes the simulated workers that a configuration describes.

Invariant: workers depend on the configuration and the seed alone.
"""

import random

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.traces import read_lengths
from protocol.errors import ConfigError
from protocol.messages import Role
from workers.simulated import (
    Distribution,
    Environment,
    EpisodeLimits,
    RolloutTimes,
    SharedPulls,
    SimulatedAgent,
    SimulatedEngine,
    SimulatedReward,
    SimulatedRollout,
    SimulatedTrainer,
    StepCost,
    TrainerTimes,
    Workload,
    make_distribution,
)
from workers.simulated.physics import BLOCK

OF_A_STEP = ("floor_s", "step_base_s", "token_s", "decode_base_s", "decode_context_s")
HELD_OUT_PROMPTS = 100  # of a held-out set without max_prompts, as its file is not read here

Simulated = SimulatedRollout | SimulatedReward | SimulatedTrainer | SimulatedAgent


def distribution_of(config: Config) -> Distribution:
    """Response lengths of a configuration. Raises: ConfigError."""
    workload = config.simulation.workload
    if workload.trace and workload.kind != "trace":
        raise ConfigError(
            f"simulation.workload.trace is {workload.trace!r}, and simulation.workload.kind is "
            f"{workload.kind}, which takes no lengths from a run; give "
            "simulation.workload.kind=trace, or leave the trace out."
        )
    return make_distribution(
        workload.kind,
        cap=config.rollout.max_response_tokens,
        low=workload.low_tokens,
        median=workload.median_tokens,
        sigma=workload.sigma,
        alpha=workload.alpha,
        long_share=workload.long_share,
        lengths=read_lengths(workload.trace) if workload.kind == "trace" else (),
    )


def step_cost(config: Config) -> StepCost:
    """Coefficients of an engine of speed 1. Raises: ConfigError if its steps take no time at all."""
    fields = config.simulation.engine.model_dump()
    if not any(fields[name] for name in OF_A_STEP):
        raise ConfigError(
            f"{', '.join(f'simulation.engine.{name}' for name in OF_A_STEP)} are all 0: a decode step would "
            "take no time. Give one of them more."
        )
    return StepCost(**{name: fields[name] for name in StepCost._fields})


class Cluster:
    """Makes workers of one run."""

    def __init__(self, config: Config, seed: int) -> None:
        simulation = config.simulation
        self._config, self._rng = config, random.Random(f"workers/{seed}")
        self._pulls = SharedPulls(simulation.pulls_at_once)
        self.prompt_tokens = min(simulation.workload.prompt_tokens, config.rollout.max_prompt_tokens)
        self.workload = Workload(
            distribution_of(config),
            seed=seed,
            group_correlation=simulation.workload.group_correlation,
            prompt_tokens=self.prompt_tokens,
            prompts=simulation.workload.prompts,
        )
        sets = config.evaluation.data.items()
        self.held_out = tuple(name for name, one in sets for _ in range(one.max_prompts or HELD_OUT_PROMPTS))
        """Data sources of the held-out prompts."""
        longest = self.prompt_tokens + config.rollout.max_response_tokens + 1
        there = simulation.engine.kv_blocks * BLOCK
        if there < longest:
            raise ConfigError(
                f"simulation.engine.kv_blocks is {simulation.engine.kv_blocks}: room for {there} tokens; one "
                f"prompt with its response can have {longest}. Give {-(-longest // BLOCK)} or more, or lower "
                "rollout.max_response_tokens."
            )

    def make(self, name: str, role: Role, now: float) -> Simulated:
        """A worker that was started at `now`."""
        simulation = self._config.simulation
        if role == "trainer":
            is_early = simulation.publish == "early"
            base_s, token_s = simulation.train_base_s, train_token_s(self._config)
            offload_s = simulation.offload_s if self._config.is_colocated else None
            times = TrainerTimes(
                simulation.attach_s, base_s, token_s, simulation.publish_s, is_early, offload_s
            )
            return SimulatedTrainer(times, now=now)
        if role == "reward":
            return SimulatedReward(
                self._rng.getrandbits(32),
                prompt_tokens=self.prompt_tokens,
                score_s=simulation.score_s,
                attach_s=simulation.attach_s,
                processes=self._config.reward.processes,
                now=now,
            )
        if role == "agent":
            return self._agent(now)
        return self._rollout(name, now)

    def _agent(self, now: float) -> SimulatedAgent:
        simulation, agent, rollout = self._config.simulation, self._config.agent, self._config.rollout
        fields = simulation.environment.model_dump()
        environment = Environment(**fields, first_tokens=self.prompt_tokens)
        limits = EpisodeLimits(
            agent.max_turns,
            agent.max_turn_tokens or rollout.max_response_tokens,
            agent.max_tokens or rollout.max_prompt_tokens + rollout.max_response_tokens,
            agent.max_trajectories,
            agent.max_sampled_tokens,
        )
        seed, at_once = self._rng.getrandbits(32), agent.concurrency
        return SimulatedAgent(
            environment, limits, seed=seed, at_once=at_once, attach_s=simulation.attach_s, now=now
        )

    def _rollout(self, name: str, now: float) -> SimulatedRollout:
        simulation, rollout = self._config.simulation, self._config.rollout
        engine = SimulatedEngine(
            step_cost(self._config),
            rows=rollout.max_running,
            kv_blocks=simulation.engine.kv_blocks,
            token_budget=simulation.engine.token_budget,
            prompt_tokens=self.prompt_tokens,
            is_reprefill_free=simulation.is_reprefill_free,
            parks_turns=self._config.agent.is_on,
        )
        engine.speed = self.speed(name)
        times = RolloutTimes(
            simulation.attach_s,
            simulation.pull_s,
            max(rollout.first_progress_s, simulation.report_s),
            max(rollout.first_status_s, simulation.report_s),
        )
        return SimulatedRollout(engine, self.workload, times, pulls=self._pulls, now=now)

    def speed(self, name: str) -> float:
        """Speed of the instance of this name (`rollout-<n>`)."""
        speeds, number = self._config.simulation.engine.speeds, name.rpartition("-")[2]
        return speeds[int(number) % len(speeds)] if number.isdigit() else speeds[0]
