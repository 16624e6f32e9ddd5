"""The section `simulation`: the cluster that `launch.py simulate` makes up, as one frozen, strict model.

Invariant: pure, and below the configuration, which includes it. The defaults are a mid-sized model on one
large-memory GPU per instance (an 8B model on an H20), the cluster whose results and upper bounds are known.
"""

from typing import Annotated, Literal

from pydantic import Field

from protocol.settings import Section


class WorkloadSettings(Section):
    """How long responses are.

    The longest is always `rollout.max_response_tokens`; what is left at null is a share of it, the same for
    every cap.
    """

    kind: Literal["lognormal", "bimodal", "power_law", "uniform", "fixed", "trace"] = "lognormal"
    """Distribution of response lengths, cut at the cap. `trace` draws from the responses of a finished
    run."""
    low_tokens: int | None = Field(default=None, ge=1)
    """Shortest response; the short mode of `bimodal`; the length of `fixed`. Null: cap/512, cap/12, the cap,
    and for `power_law` 3 % of the cap, for `uniform` cap/16."""
    median_tokens: int | None = Field(default=None, ge=1)
    """Median of `lognormal` before it is cut. Null: 18 % of the cap."""
    sigma: float = Field(default=0.9, ge=0)
    """Width of `lognormal`, of the logarithm; 0.9 puts 3 % of the responses at a cap of 5.5 medians."""
    alpha: float = Field(default=1.2, gt=0)
    """Exponent of the tail of `power_law`; smaller is heavier."""
    long_share: float = Field(default=0.1, ge=0, le=1)
    """Share of responses of `bimodal` that reach the cap."""
    trace: str = ""
    """The run.db (or run directory) that `trace` takes its lengths from."""
    group_correlation: float = Field(default=0.0, ge=0, le=1)
    """Correlation of the (normal scores of the) lengths inside a group: 0 is independent, 1 makes siblings
    equally long."""
    prompts: int = Field(default=0, ge=0)
    """Different prompts, each once in an epoch; their responses then share `group_correlation` over epochs,
    too. 0: no prompt comes twice."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Length of every prompt, at most `rollout.max_prompt_tokens`."""


class EngineSettings(Section):
    """A rollout engine that batches continuously.

    A decode step of r responses with C resident tokens takes decode_base_s + decode_context_s * C +
    max(floor_s, step_base_s + token_s * r) seconds.
    """

    floor_s: float = Field(default=0.0069, ge=0)
    """Least time of a step without attention: reading the weights."""
    step_base_s: float = Field(default=0.0027, ge=0)
    """Part of a step's time that does not depend on its tokens."""
    token_s: float = Field(default=0.000133, ge=0)
    """Compute of one token of a step, prefilled or decoded."""
    decode_base_s: float = Field(default=0.0028, ge=0)
    """Constant part of the attention of a decode step."""
    decode_context_s: float = Field(default=8.7e-8, ge=0)
    """Seconds to read one resident token of the KV cache."""
    prefill_base_s: float = Field(default=0.0, ge=0)
    """Constant part of the attention of a prefill."""
    prefill_pair_s: float = Field(default=2.4e-9, ge=0)
    """Seconds per squared token of prefill attention; the prefix that is prefilled already counts."""
    kv_blocks: int = Field(default=30_900, ge=1)
    """Blocks of 16 tokens in the KV cache of one instance."""
    token_budget: int = Field(default=8192, ge=1)
    """Tokens that one step may work on."""
    speeds: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1.0,), min_length=1)
    """Speed of each instance relative to the numbers above, repeated as often as needed."""


class EnvironmentSettings(Section):
    """What the agents of `agent.function` do, where there is one: episodes of several turns.

    Numbers of turns and tokens and times are drawn log-normally about their medians; turns are as long as
    responses are.
    """

    turns: int = Field(default=4, ge=1)
    """Median of the turns of an episode; at most `agent.max_turns`."""
    turns_sigma: float = Field(default=0.5, ge=0)
    """Width of their distribution, of the logarithm."""
    given_tokens: int = Field(default=64, ge=1)
    """Median of the tokens that an environment gives between two turns."""
    wait_s: float = Field(default=2.0, ge=0)
    """Median of the seconds that it takes for that."""
    sigma: float = Field(default=1.0, ge=0)
    """Width of the distribution of these seconds and tokens."""
    start_s: float = Field(default=1.0, ge=0)
    """Median of the seconds from the beginning of an episode to its first request."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of waits at the end of which the environment has failed."""
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of waits that never end."""
    divergence_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of episodes that ask something else each time that they are run."""
    fork_rate: float = Field(default=0.0, ge=0, lt=1)
    """Share of requests that begin another trajectory, and of those that do not wait for the one before."""
    saved_bytes: int = Field(default=0, ge=0)
    """Bytes of the state that an environment saves with each request. 0: it cannot, and is run again."""


class FaultSettings(Section):
    """What goes wrong: exponential waiting times from the seed. All zero: nothing does."""

    rollout_kills: float = Field(default=0.0, ge=0)
    """Losses of a rollout worker per second, over all of them."""
    reward_kills: float = Field(default=0.0, ge=0)
    """Losses of a reward worker per second."""
    agent_kills: float = Field(default=0.0, ge=0)
    """Losses of an agent worker per second."""
    hang_share: float = Field(default=0.3, ge=0, le=1)
    """Share of those losses in which the process lives on and says nothing."""
    stragglers: float = Field(default=0.0, ge=0)
    """Slow spells of a rollout worker per second, over all of them."""
    straggler_factor: float = Field(default=4.0, ge=1)
    """How many times slower an instance is in such a spell."""
    straggler_s: float = Field(default=60.0, gt=0)
    """Mean length of a slow spell, of an instance or a link, in seconds."""
    slow_links: float = Field(default=0.0, ge=0)
    """Spells per second in which all messages of one worker are late."""
    late_share: float = Field(default=0.0, ge=0, le=1)
    """Share of single messages that are late (lost and sent again); those behind them wait."""
    late_s: float = Field(default=1.0, gt=0)
    """Mean delay of a late message, and of each message of a slow link, in seconds."""


class SimulationSettings(Section):
    """The cluster that `launch.py simulate` makes up. A real run does not read it."""

    workload: WorkloadSettings = WorkloadSettings()
    """Lengths of prompts and responses."""
    engine: EngineSettings = EngineSettings()
    """Physics of a rollout instance."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Environments of agents."""
    faults: FaultSettings = FaultSettings()
    """What goes wrong."""
    train_token_s: float = Field(default=2.3e-5, ge=0)
    """Seconds of a train step per token of prompts and responses."""
    train_base_s: float = Field(default=0.0, ge=0)
    """Seconds of a train step that do not depend on its tokens."""
    publish: Literal["honest", "early"] = "honest"
    """`honest`: a version is visible `publish_s` after its step ended. `early`: when the step begins, which
    nobody can do; only for comparison with simulators that assume it."""
    publish_s: float = Field(default=0.0, ge=0)
    """Seconds from the end of a train step until its version can be pulled."""
    offload_s: float = Field(default=3.0, ge=0)
    """Seconds in which a trainer with `placement: colocated` moves weights and optimizer state off the
    device, and again those in which it takes them back. 3: the 84 GB of 7 billion parameters at 25 GB/s."""
    recompute_share: float = Field(default=0.0, ge=0)
    """What the forward pass before a step takes, as a share of `train_token_s`, where `trainer.proximal` is
    `recompute`; 0.33 where the step is a forward and a backward pass. 0: `train_token_s` holds it."""
    pull_s: float = Field(default=3.0, ge=0)
    """Seconds in which an instance that pulls does nothing else; its KV cache is empty afterwards."""
    pulls_at_once: int = Field(default=0, ge=0)
    """Pulls that go at full speed beside each other; one more takes the longer, in proportion. 0: any
    number."""
    is_reprefill_free: bool = False
    """Responses that go on elsewhere or under other weights need no prefill. Only for comparison with
    simulators that assume it."""
    score_s: float = Field(default=0.0, ge=0)
    """Seconds that one of the reward.processes of a reward worker takes for a group."""
    attach_s: float = Field(default=1.0, ge=0)
    """Seconds from the start of a worker to Ready."""
    event_s: float = Field(default=0.0, ge=0)
    """Seconds that the controller takes for an event: what comes meanwhile waits, in order, and what it
    wants leaves at the end of them."""
    report_s: float = Field(default=1.0, ge=0)
    """Reports of progress and load come at most this often, whatever `rollout.progress_s` and
    `rollout.status_s` say: they are most of the work of a long simulation."""
