"""The section `staleness`.

Invariant: what a preset of `staleness.strategy` sets is filled in before anything is checked; a key that is
written out counts instead.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from protocol.section import Section
from strategies.presets import with_preset


class StalenessSettings(Section):
    """How far rollout may run ahead of training, and how work is placed."""

    max_staleness: int = Field(default=2, ge=0, le=64)
    """Hard bound, in policy versions: no trajectory is trained whose oldest token is older than this. 0 is
    synchronous; 1 to 3 gives nearly all of the speed (the paper's eta)."""
    strategy: Literal[
        "staleflow", "sync", "one_step", "areal", "roll_flash", "verl_async", "nemo_rl", "prime_rl", "greedy"
    ] = "staleflow"
    """Preset of the keys below; a key that is set overrides it. Presets other than `staleflow` are the rules
    of other systems on this engine. `areal` and `verl_async` do not promise the bound; their violations are
    counted. `prime_rl` lacks that system's gate on its dispatcher's lead and its limit of rollouts in flight,
    so it starts and drops more."""
    in_flight_batches: float | Literal["auto", "all"] = "auto"
    """Most groups in the system, in batches; a number counts groups until the version that they trained is
    published. `auto` finds the fewest that keep the speed (docs/freshness.md), `all` starts as many as the
    bound admits (then the mean staleness is about the bound)."""
    objective: Literal["throughput", "fresh"] | Annotated[float, Field(ge=0, le=1)] = "throughput"
    """Goal of `in_flight_batches: auto`: all of the speed (`throughput`), or a mean staleness of at most 1,
    whatever the bound (`fresh`, which turns `trainer.streaming` on where it is exact). A number is between
    them: the share of throughput that one more version of mean staleness has to bring, by the fitted speed of
    instances. docs/freshness.md shows how speed depends on staleness."""
    admission: str = "window"
    """Rule for how many groups may start: `window` (in_flight_batches), `one_batch`, `areal`, `roll_flash`,
    `prime_rl` (as many as have room), `verl_async`, or an import path of a function like those of
    strategies/admission.py."""
    ledger: Literal["deadlines", "in_order", "arrival", "completion", "floor"] = "deadlines"
    """Order of batches, and whether they keep the bound: `deadlines` keeps it by reservation; so does
    `in_order`, which assigns a group to its batch at its start and waits for exactly these groups; `arrival`
    and `completion` take the groups that started, or ended, first, however old; `floor` drops groups that
    became too old."""
    routing: str = "marginal_gain"
    """`marginal_gain`, `least_requests`, `group_affine`, `round_robin`, or an import path of a function like
    those of strategies/routing.py."""
    mu: float = Field(default=0.3, ge=0, le=1)
    """Marginal-gain routing leaves a trajectory queued while its gain at each instance is under mu times its
    gain at an idle instance. 0: it starts wherever there is room."""
    adaptive_mu: bool = True
    """Lower mu while it keeps groups back for long, while the trainer waits for groups rather than for
    stragglers, and where many responses are about as long as the longest. `mu` is the highest value to which
    it returns."""
    synchronization: str = "gain"
    """When an instance pulls: `gain` (when new weights are worth the prefill), `greedy` (at once), `status`
    (when few of its trajectories are left), `every_few`, or an import path of a function like those of
    strategies/synchronization.py."""
    indicator: Literal["requests", "throughput", "kv"] = "kv"
    """Load that `status` measures: running trajectories, tokens/s, or share of the KV cache."""
    indicator_threshold: float = Field(default=0.6, ge=0)
    """`status` pulls at or under this value of the indicator."""
    guard: bool = False
    """Pull a version only when the batch that updates it is ready, so that the trainer does not starve."""
    sync_steps: int = Field(default=4, ge=1)
    """`every_few` pulls versions that are multiples of this."""
    partial_rollout: bool = True
    """Interrupt running trajectories when an instance pulls, and go on with them under the new weights. Off:
    wait until they end."""
    keep_kv: bool = False
    """Swap weights under running trajectories, which keep the KV of the old ones: no prefill is repeated, at
    the price of attention to keys that the new weights would not have made."""
    migration: str = "gap"
    """When trajectories move between instances: `gap` (at wide gaps in throughput, and the longest responses
    away from slower devices), `benefit` (as `gap`, and the longest responses to instances where they end
    sooner), `none`, or an import path of a function like those of strategies/migration.py."""
    phi_wait: int = Field(default=3, ge=0)
    """An instance whose own queue is longer than this returns its waiting trajectories."""
    phi_throughput: float = Field(default=5.0, ge=1)
    """Ratio of the throughputs of two instances above which trajectories move."""
    length_prediction: bool = True
    """Let routing and migration use predicted response lengths (siblings, tokens so far)."""
    affinity: bool = True
    """Let routing count the prefill that a turn of an agent saves at the instance of the turn before, which
    may still have its keys and values. The instance is preferred by that saving, never required."""
    urgency: float = Field(default=5.0, ge=0)
    """Worth of a token per second of a trajectory that is short of time, relative to any other, when routing
    weighs which trajectories new work slows down. Needs length prediction."""
    cost_model: str = "online"
    """Speed of instances: `online` (fitted from the reports of all instances of one kind), `published` (a 7B
    model on one GPU), or a JSON file made by `launch.py profile`, whose content replaces its name when the
    configuration is read."""
    decide_s: float = Field(default=0.1, gt=0)
    """Seconds between two decisions to pull lazily or to migrate."""
    pacing: str = "adaptive"
    """Rule that sets the cap of `in_flight_batches: auto`, and the mu of routing, after each train step:
    `adaptive`, `fixed` (they keep their first values), or an import path of a function like those of
    strategies/pacing.py."""
    pace: float = Field(default=0.0, ge=0, lt=1)
    """Least time from one train step to the next, as a share of the mean time between two, so that instances
    are not crowded now and empty later. 0: a step begins as soon as a batch is ready."""
    sampler: str = "in_order"
    """Groups that make a batch: `in_order` (of the data), `similar_length` (prompts whose responses are
    expected to be about equally long, so that long ones do not delay every batch; see docs/batches.md),
    `similar_length_shuffled` (such batches in a random order), or an import path of a function like those of
    strategies/batches/samplers.py."""
    sampler_batches: int = Field(default=8, ge=2, le=256)
    """Batches of a window, within which a sampler may reorder prompts: a single batch is biased, a window is
    not. As many batches of prompts are read ahead."""
    stragglers: Literal["wait", "retry", "truncate"] = "wait"
    """What to do if the trainer waits for a few groups alone, at their deadline: `wait`; `retry`, start the
    prompt again under new weights; or `truncate`, end the responses where they are."""
    straggler_groups: int = Field(default=4, ge=0)
    """`retry` and `truncate` act if at most this many groups are missing."""
    spare_responses: int = Field(default=0, ge=0)
    """Responses started per prompt beyond `rollout.group_size`; the responses that end first are kept, which
    favours short ones."""
    spare_groups: int = Field(default=0, ge=0)
    """Groups started per batch beyond `trainer.batch_groups`; a batch then waits for no straggler, and groups
    that are too late are dropped. The ledger `in_order` starts none, as its batches are fixed."""
    filter: str = "none"
    """`none`; `zero_variance` drops groups whose rewards are all equal, or with `agent.turn_rewards` those in
    which no turn has advantages that differ (no two turns, with `agent.turn_advantages` of your own). Each is
    replaced by one fresh prompt. Or an import path of a function like those of strategies/filtering.py."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        return with_preset(values) if isinstance(values, dict) else values
