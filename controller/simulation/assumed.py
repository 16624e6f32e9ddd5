"""Describes the cluster that a simulation assumes: its figures do not apply to this machine.

Invariant: the description is of the simulated workers as they are.
"""

from controller.config.models import Config
from controller.config.simulation import EngineSettings
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost
from workers.simulated import StepCost
from workers.simulated.physics import BLOCK


def in_words(config: Config) -> list[str]:
    """Lines on the simulated cluster and how to set it. Raises: ConfigError, as the simulation does."""
    simulation, rollout = config.simulation, config.rollout
    lengths, engine = distribution_of(config), simulation.engine
    prompt = min(simulation.workload.prompt_tokens, rollout.max_prompt_tokens)
    cost, context, kv_tokens = step_cost(config), prompt + lengths.mean() / 2, BLOCK * engine.kv_blocks
    rows = max(1, min(rollout.max_running, int(kv_tokens / context)))
    whose = "an 8B model on one large-memory GPU (H20) per instance, by the defaults"
    if engine != EngineSettings():
        whose = "as simulation.engine says"
    speeds = ", ".join(f"{speed:g}" for speed in engine.speeds)
    speeds = "" if speeds == "1" else f"; relative speeds {speeds}"
    alone, together = (_rate(cost, count, context) for count in (1, rows))
    base = f" and {simulation.train_base_s:g} s a step" if simulation.train_base_s else ""
    pulls = f", {simulation.pulls_at_once} at once" if simulation.pulls_at_once else ""
    events = "decisions and messages cost nothing"
    if simulation.event_s:
        events = f"the controller takes {1e6 * simulation.event_s:g} us an event"
    scored = f"{config.reward.workers} x {config.reward.processes} at a time"
    return [
        f"Simulated cluster, not this machine: {whose}.",
        f"  {rollout.instances} rollout instances: {alone:,.0f} tokens/s with one response, {together:,.0f} "
        f"with {rows}; KV cache of {kv_tokens:,} tokens{speeds}",
        f"  trainer: {_per_second(train_token_s(config))} tokens/s{base}; weights published in "
        f"{simulation.publish_s:g} s, pulled in {simulation.pull_s:g} s{pulls}",
        f"  rewards: {simulation.score_s:g} s a group, {scored}; {events}",
        f"  prompts of {prompt} tokens; responses {simulation.workload.kind}, {lengths.mean():,.0f} tokens "
        f"on average, {rollout.max_response_tokens:,} at most",
        "Set it with simulation.KEY=VALUE; what a run of yours took, `launch.py profile RUN` prints "
        "(docs/simulation.md).",
    ]


def _rate(cost: StepCost, rows: int, context: float) -> float:
    """Tokens per second of an instance that decodes so many responses with so much context each."""
    return rows / cost.stretch_s(rows, round(rows * context), 1)


def _per_second(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "unlimited"
