"""The section `simulation`: the cluster that `launch.py simulate` simulates.

Invariant: pure; `controller/config/models.py` imports this module, which does not import it. The defaults are
a mid-sized model on one large-memory GPU per instance (an 8B model on an H20), a cluster with known results
and upper bounds.
"""

from typing import Annotated, Literal

from pydantic import Field

from protocol.settings import Section


class WorkloadSettings(Section):
    """Distribution of prompt and response lengths.

    The cap is always `rollout.max_response_tokens`; lengths left at null are a fixed share of it.
    """

    kind: Literal["lognormal", "bimodal", "power_law", "uniform", "fixed", "trace"] = "lognormal"
    """Distribution of response lengths, cut at the cap. `trace` draws from the responses of a recorded
    run."""
    low_tokens: int | None = Field(default=None, ge=1)
    """Shortest response; the short mode of `bimodal`; the length of `fixed`. Null: cap/512, cap/12, the cap,
    and for `power_law` 3 % of the cap, for `uniform` cap/16."""
    median_tokens: int | None = Field(default=None, ge=1)
    """Median of `lognormal` before the cut. Null: 18 % of the cap."""
    sigma: float = Field(default=0.9, ge=0)
    """Standard deviation of the logarithm of `lognormal`; 0.9 puts 3 % of the responses at a cap of 5.5
    medians."""
    alpha: float = Field(default=1.2, gt=0)
    """Exponent of the tail of `power_law`; smaller is heavier."""
    long_share: float = Field(default=0.1, ge=0, le=1)
    """Share of responses of `bimodal` that reach the cap."""
    trace: str = ""
    """The run.db, or run directory, with the lengths of `trace`."""
    group_correlation: float = Field(default=0.0, ge=0, le=1)
    """Correlation of the (normal scores of the) lengths inside a group: 0 is independent, 1 makes siblings
    equally long."""
    prompts: int = Field(default=0, ge=0)
    """Number of different prompts, each once in an epoch; their responses are then correlated over epochs,
    too, by `group_correlation`. 0: no prompt comes twice."""
    prompt_tokens: int = Field(default=512, ge=1)
    """Length of every prompt, at most `rollout.max_prompt_tokens`."""


class EngineSettings(Section):
    """Speed and memory of a simulated rollout engine with continuous batching.

    A decode step of r responses with C resident tokens takes decode_base_s + decode_context_s * C +
    max(floor_s, step_base_s + token_s * r) seconds.
    """

    floor_s: float = Field(default=0.0069, ge=0)
    """Least seconds of a step without attention: reading the weights."""
    step_base_s: float = Field(default=0.0027, ge=0)
    """Seconds of a step that do not depend on its tokens."""
    token_s: float = Field(default=0.000133, ge=0)
    """Seconds of compute for one token of a step, prefilled or decoded."""
    decode_base_s: float = Field(default=0.0028, ge=0)
    """Seconds of attention in a decode step, constant part."""
    decode_context_s: float = Field(default=8.7e-8, ge=0)
    """Seconds to read one resident token of the KV cache."""
    prefill_base_s: float = Field(default=0.0, ge=0)
    """Seconds of attention in a prefill, constant part."""
    prefill_pair_s: float = Field(default=2.4e-9, ge=0)
    """Seconds of prefill attention per squared token; a prefix that is prefilled already counts, too."""
    kv_blocks: int = Field(default=30_900, ge=1)
    """Blocks of 16 tokens in the KV cache of one instance."""
    token_budget: int = Field(default=8192, ge=1)
    """Most tokens of one step."""
    speeds: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(1.0,), min_length=1)
    """Speed of each instance relative to the numbers above, repeated as often as needed."""


class EnvironmentSettings(Section):
    """Episodes of agents, if the configuration has an agent.

    Numbers of turns and tokens and times are drawn log-normally about their medians; turns have the lengths
    of responses.
    """

    turns: int = Field(default=4, ge=1)
    """Median of the turns of an episode; at most `agent.max_turns`."""
    turns_sigma: float = Field(default=0.5, ge=0)
    """Standard deviation of the logarithm of the number of turns."""
    given_tokens: int = Field(default=64, ge=1)
    """Median of the tokens from the environment between two turns."""
    wait_s: float = Field(default=2.0, ge=0)
    """Median of the seconds that the environment takes for them."""
    sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the logarithm of these seconds and tokens."""
    start_s: float = Field(default=1.0, ge=0)
    """Median of the seconds from the beginning of an episode to its first request."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of waits for the environment that end with its failure."""
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of waits for the environment that never end."""
    divergence_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of episodes whose requests differ each time that they are run."""
    fork_rate: float = Field(default=0.0, ge=0, lt=1)
    """Share of requests that begin another trajectory; also share of requests that do not wait for the
    last."""
    saved_bytes: int = Field(default=0, ge=0)
    """Bytes of the state that an environment saves with each request. 0: it saves none, and is run again."""


class FaultSettings(Section):
    """Faults, with exponential waiting times drawn from the seed. All zero: no faults."""

    rollout_kills: float = Field(default=0.0, ge=0)
    """Losses of rollout workers per second, over all of them."""
    reward_kills: float = Field(default=0.0, ge=0)
    """Losses of a reward worker per second."""
    agent_kills: float = Field(default=0.0, ge=0)
    """Losses of an agent worker per second."""
    hang_share: float = Field(default=0.3, ge=0, le=1)
    """Share of those losses in which the process lives on but is silent."""
    stragglers: float = Field(default=0.0, ge=0)
    """Slow spells of rollout workers per second, over all of them."""
    straggler_factor: float = Field(default=4.0, ge=1)
    """Slowdown of an instance in a slow spell, as a factor."""
    straggler_s: float = Field(default=60.0, gt=0)
    """Mean length of a slow spell, of an instance or a link, in seconds."""
    slow_links: float = Field(default=0.0, ge=0)
    """Slow spells of links per second, in which all messages of one worker are late."""
    late_share: float = Field(default=0.0, ge=0, le=1)
    """Share of single messages that are late (lost and sent again); later messages wait for them."""
    late_s: float = Field(default=1.0, gt=0)
    """Mean delay of a late message, and of each message of a slow link, in seconds."""


class SimulationSettings(Section):
    """The cluster that `launch.py simulate` simulates. A real run does not read these keys."""

    workload: WorkloadSettings = WorkloadSettings()
    """Lengths of prompts and responses."""
    engine: EngineSettings = EngineSettings()
    """Speed and memory of a rollout instance."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Environments of agents."""
    faults: FaultSettings = FaultSettings()
    """Faults of workers and links."""
    train_token_s: float = Field(default=2.3e-5, ge=0)
    """Seconds of a train step per token of prompts and responses."""
    train_base_s: float = Field(default=0.0, ge=0)
    """Seconds of a train step that do not depend on its tokens."""
    publish: Literal["honest", "early"] = "honest"
    """`honest`: a version is visible `publish_s` after the end of its step. `early`: from the beginning of
    its step, which is impossible; only for comparison with simulators that assume it."""
    publish_s: float = Field(default=0.0, ge=0)
    """Seconds from the end of a train step until its version can be pulled."""
    offload_s: float = Field(default=3.0, ge=0)
    """Seconds for which a trainer with `placement: colocated` moves weights and optimizer state off the
    device, and again for moving them back. 3: the 84 GB of 7 billion parameters at 25 GB/s."""
    recompute_share: float = Field(default=0.0, ge=0)
    """Time of the forward pass before a step, as a share of `train_token_s`, if `trainer.proximal` is
    `recompute`; 0.33 if the step is a forward and a backward pass. 0: `train_token_s` includes it."""
    pull_s: float = Field(default=3.0, ge=0)
    """Seconds of a pull, in which the instance does nothing else; its KV cache is empty afterwards."""
    pulls_at_once: int = Field(default=0, ge=0)
    """Number of pulls at once at full speed; with more, each takes longer, in proportion. 0: any number."""
    is_reprefill_free: bool = False
    """Whether responses that go on elsewhere or under other weights need no prefill. Only for comparison
    with simulators that assume it."""
    score_s: float = Field(default=0.0, ge=0)
    """Seconds that one process of a reward worker (`reward.processes`) takes for a group."""
    attach_s: float = Field(default=1.0, ge=0)
    """Seconds from the start of a worker to Ready."""
    event_s: float = Field(default=0.0, ge=0)
    """Seconds that the controller takes for an event: events that arrive meanwhile wait, in order, and its
    messages leave at the end."""
    report_s: float = Field(default=1.0, ge=0)
    """Least seconds between two reports of progress or load, whatever `rollout.progress_s` and
    `rollout.status_s` say: reports are most of the work of a long simulation."""
