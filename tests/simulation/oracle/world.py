"""A world: a configuration, machines and misfortunes, all drawn from one seed.

Invariants: the seed says everything, so that a failure is replayed by its number; every world can end, as
what is killed comes back, and misfortunes are over after a while.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from controller.config.models import Config
from controller.config.rules import cross_field_problems

PLUGINS = "tests.simulation.oracle.plugins"
ROUTINGS = (
    "marginal_gain", "least_requests", "group_affine", "round_robin",
    f"{PLUGINS}:route_to_any", f"{PLUGINS}:route_to_idle",
)  # fmt: skip
SYNCHRONIZATIONS = (
    "gain", "greedy", "status", "every_few", f"{PLUGINS}:never_pull", f"{PLUGINS}:pull_every_other",
)  # fmt: skip
ADMISSIONS = (
    "window", "window", "window", "one_batch", "areal", "roll_flash", "verl_async", f"{PLUGINS}:admit_few",
)  # fmt: skip
MIGRATIONS = ("none", "gap", "benefit", f"{PLUGINS}:move_the_newest")
FILTERS = ("none", "none", "none", "zero_variance", f"{PLUGINS}:keep_half")
FAULTS = (
    "kill_rollout", "kill_rollout", "kill_reward", "kill_trainer", "freeze", "freeze", "restart", "restart",
    "leave", "drain", "join", "lose_versions",
)  # fmt: skip
PROMPT_TOKENS = 8
MUTES = {  # what a worker takes and never answers
    "rollout": ("Ready", "Pull", "Route", "Interrupt", "Serve", "Drain"),
    "reward": ("Ready", "Encode", "Score", "Drain"),
    "trainer": ("Ready", "Train", "TrainAhead", "SaveCheckpoint", "Publish", "Serve"),
}
SHORT_LIMITS = {
    "answer_s": 4.0,
    "token_s": 12.0,
    "pull_s": 12.0,
    "step_s": 15.0,
    "ready_s": 8.0,
    "end_s": 40.0,
}
QUIET_S = 40.0  # of virtual time; then nothing is done to the world any more


@dataclass(frozen=True, slots=True)
class Machine:
    """A rollout worker: what it can carry, and how fast it is."""

    name: str
    host: str
    is_local: bool
    capacity: int
    kv_tokens: int
    tokens_per_s: float  # of each response


@dataclass(frozen=True)
class World:
    """All that is drawn before a run begins."""

    seed: int
    config: Config
    machines: tuple[Machine, ...]
    prompts: int | None  # None: no end
    held_out: int
    faults: tuple[tuple[float, str], ...]  # when, and what
    stop_s: float | None
    late_share: float  # messages that take long
    late_s: float
    train_s: float
    pull_s: float
    failing: dict[str, float] = field(hash=False)  # probability of each kind of failure, per attempt
    mutes: tuple[
        tuple[int, str, str], ...
    ] = ()  # after so many processes of a role, one, and what it ignores

    @property
    def is_strict(self) -> bool:
        """Whether the bound is promised."""
        return self.config.staleness.ledger in ("deadlines", "floor") or self.config.trainer.is_supervised


def draw(seed: int, **staleness: Any) -> World:
    """The world of this number; `staleness`: rules that are given, not drawn."""
    rng = random.Random(f"oracle/{seed}")
    while True:
        tree = _tree(rng)
        tree["staleness"] |= staleness
        tree["rollout"]["instances"] = local = rng.choice([0, 1, 1, 2, 3])
        config = Config.model_validate(tree)
        if not cross_field_problems(config):
            break
    remote = rng.choice([1, 1, 2, 3]) if not local else rng.choice([0, 0, 0, 1, 2])
    is_rough = rng.random() < 0.8
    count = rng.randrange(10) if is_rough else 0
    return World(
        seed=seed,
        config=config,
        machines=tuple(_machine(rng, config, number, number < local) for number in range(local + remote)),
        prompts=rng.choice([None, None, rng.randrange(1, 40)]),
        held_out=rng.randrange(1, 4) if config.evaluation.every_steps else 0,
        faults=tuple(
            sorted((rng.uniform(0.5, QUIET_S * rng.random()), rng.choice(FAULTS)) for _ in range(count))
        ),
        stop_s=rng.uniform(1, 30) if rng.random() < 0.05 else None,
        late_share=rng.choice([0.0, 0.0, 0.02, 0.1]),
        late_s=rng.choice([0.2, 2.0]),
        train_s=rng.choice([0.05, 0.5, 3.0]),
        pull_s=rng.choice([0.01, 0.3, 2.0]),
        failing={
            kind: rng.choice([0.0, 0.0, 0.03, 0.15]) if is_rough else 0.0
            for kind in ("pull", "generate", "score", "refuse")
        },
        mutes=_mutes(rng),
    )


def _mutes(rng: random.Random) -> tuple[tuple[int, str, str], ...]:
    """Some workers that are heard and do not do what they are asked, among the first of their role."""
    count = rng.choice([0, 0, 0, 1, 1, 2, 3])
    roles = [rng.choice(["rollout", "rollout", "reward", "trainer"]) for _ in range(count)]
    return tuple((rng.randrange(3), role, rng.choice(MUTES[role])) for role in roles)


def _machine(rng: random.Random, config: Config, number: int, is_local: bool) -> Machine:
    needed = PROMPT_TOKENS + config.rollout.max_response_tokens
    return Machine(
        name=f"rollout-{number}" if is_local else f"node{number}",
        host="here" if is_local or rng.random() < 0.3 else f"host{number}",
        is_local=is_local,
        capacity=config.rollout.max_running,
        kv_tokens=int(needed * rng.choice([1, 1.2, 2, 5, 20])) if rng.random() < 0.95 else needed // 2,
        tokens_per_s=rng.choice([5, 20, 80]) * rng.uniform(0.8, 1.2),
    )


def _tree(rng: random.Random) -> dict[str, Any]:
    """A configuration; the rules between its fields may refuse it."""
    is_supervised = rng.random() < 0.03
    group_size = rng.choice([1, 2, 2, 3, 4])
    trainer = {
        "batch_groups": rng.choice([1, 1, 2, 2, 3, 4]),
        "checkpoint_steps": rng.choice([0, 1, 2, 5]),
        "local": rng.random() < 0.7,
        "streaming": rng.random() < 0.15,
    }
    if is_supervised:
        trainer["algorithm"] = "sft"
    elif group_size == 1:
        trainer["algorithm"] = "reinforce"
    tree: dict[str, Any] = {
        "run": {"steps": rng.choice([2, 3, 4, 5]), "seed": rng.randrange(1000)},
        "rollout": {
            "group_size": group_size,
            "max_prompt_tokens": PROMPT_TOKENS,
            "max_response_tokens": rng.choice([4, 12, 40]),
            "max_running": rng.choice([1, 2, 3, 5, 8]),
            "progress_s": rng.choice([0.2, 0.5]),
            "status_s": rng.choice([0.1, 0.5]),
        },
        "reward": {"workers": rng.choice([1, 1, 2]), "retries": rng.choice([1, 2]),
                   "max_consecutive_failures": 50, "timeout_s": 2.0},
        "trainer": trainer,
        "limits": SHORT_LIMITS,
        "staleness": _rules(rng),
        "controller": {"beat_s": 1.0, "lease_s": rng.choice([3.0, 6.0]), "respawns": 100,
                       "attach_timeout_s": 30.0, "reattach_s": rng.choice([0.0, 30.0])},
    }  # fmt: skip
    if rng.random() < 0.25 and not is_supervised:
        tree["evaluation"] = {
            "every_steps": rng.choice([1, 2, 3]),
            "at_start": rng.random() < 0.5,
            "at_end": rng.random() < 0.5,
            "data": {"test": {"path": "test.jsonl"}},
            "samples": rng.choice([1, 2]),
            "sampling": {"temperature": 1.0},
            "exact": rng.random() < 0.5,
            "share": rng.choice([0.1, 0.5, 1.0]),
        }
    return tree


def _rules(rng: random.Random) -> dict[str, Any]:
    bound = rng.choice([0, 0, 1, 1, 2, 3, 4])
    if rng.random() < 0.1:
        name = rng.choice(["sync", "one_step", "areal", "roll_flash", "verl_async", "greedy"])
        return {"strategy": name, "max_staleness": {"sync": 0, "one_step": 1}.get(name, bound)}
    return {
        "max_staleness": bound,
        "in_flight_batches": rng.choice(["auto", "all", "all", min(1.5, bound + 1.0)]),
        "admission": rng.choice(ADMISSIONS),
        "ledger": rng.choice(["deadlines"] * 8 + ["arrival", "completion", "floor"]),
        "routing": rng.choice(ROUTINGS),
        "mu": rng.choice([0.0, 0.0, 0.3, 0.9]),
        "adaptive_mu": rng.random() < 0.5,
        "synchronization": rng.choice(SYNCHRONIZATIONS),
        "indicator": rng.choice(["requests", "throughput", "kv"]),
        "indicator_threshold": rng.choice([0.0, 0.0, 0.6, 1.0]),
        "guard": rng.random() < 0.25,
        "sync_steps": rng.choice([1, 2, 4]),
        "partial_rollout": rng.random() < 0.7,
        "keep_kv": rng.random() < 0.3,
        "migration": rng.choice(MIGRATIONS),
        "phi_wait": rng.choice([0, 1, 3]),
        "phi_throughput": rng.choice([1.0, 2.0, 5.0]),
        "length_prediction": rng.random() < 0.7,
        "urgency": rng.choice([0.0, 5.0]),
        "cost_model": rng.choice(["online", "published"]),
        "decide_s": rng.choice([0.1, 0.5]),
        "pace": rng.choice([0.0, 0.0, 0.85]),
        "stragglers": rng.choice(["wait", "wait", "retry", "truncate"]),
        "straggler_groups": rng.choice([1, 4]),
        "spare_responses": rng.choice([0, 0, 1, 2]),
        "spare_groups": rng.choice([0, 0, 0, 1, 2]),
        "filter": rng.choice(FILTERS),
    }
