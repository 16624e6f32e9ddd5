"""The interface of a rollout engine; the rollout worker uses nothing else of it.

Invariants that every engine keeps (the conformance kit checks them):
- `step` never blocks longer than one step of its batch; all calls after the constructor come from one thread.
  An engine whose steps run elsewhere (`RunsByItself`) need not block at all.
- A token and its logprob are reported exactly once, by the step that sampled it, with the policy version in
  force.
- The logprob is that of the distribution sampled from: after min_tokens, temperature, top-k, top-p and min-p.
- Equal weights, prompt, seed and start position give equal tokens. With `continues_noise`, the noise of a
  response token is a function of (seed, its position in the response) alone, so an interrupted and resumed
  response continues as if uninterrupted, if the weights are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from protocol.errors import ConfigError
from protocol.kept_sets import BIAS, EVERYTHING, KeptSet

if TYPE_CHECKING:
    import torch

    from protocol.settings import SamplingSettings, WorkerSettings
    from workers.models.storages import OnDevice

Key = tuple[int, int, int]
"""(group, member, attempt): identifies one generation in an engine."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One trajectory to generate, or to continue."""

    key: Key
    prompt_tokens: Sequence[int]
    response_tokens: Sequence[
        int
    ]  # generated before, possibly elsewhere; not sampled again, not reported again
    max_new_tokens: int  # >= 1
    seed: int
    sampling: "SamplingSettings | None" = None  # in place of `rollout.sampling`


class Sampled(NamedTuple):
    """One token of one generation, from one engine step."""

    key: Key
    token: int
    logprob: float
    ending: Literal["", "stop", "length"]
    kept: KeptSet = EVERYTHING  # the set it was drawn from; required only with `reports_kept_sets`


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Current load, and totals since the start; units as in protocol.messages.InstanceStatus."""

    running: int
    waiting: int
    resident_tokens: int
    decode_steps: int
    decode_tokens: int
    decode_s: float
    prefill_tokens: int
    prefill_s: float
    decode_context: int = 0
    preemptions: int = 0
    queued: tuple[Key, ...] = ()
    parked_tokens: int = 0  # of ended turns, kept in the KV cache while there is room
    reused_tokens: int = 0  # of prompts, found in the KV cache as parts of earlier turns


class Engine(Protocol):
    """One rollout instance's engine."""

    capacity: int  # generations at once
    kv_tokens: int  # that the KV cache holds
    policy_version: int  # of the weights in force; 0 at first: the model directory has version 0
    continues_noise: bool  # see above; at temperature 0 every engine continues as if uninterrupted
    reports_kept_sets: bool  # whether `Sampled.kept` is set; False if the attribute is missing

    def add(self, generation: Generation) -> None:
        """Queue a generation.

        Raises: ValueError, with any message, if it can never run (`check_generation`), or its key is in use;
        existing generations are unaffected.
        """
        ...

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these generations at once; unknown keys are ignored (they may just have ended)."""
        ...

    def step(self) -> list[Sampled]:
        """Admit what fits, prefill it, and sample one token for every generation that is prefilled.

        Returns [] if there is none, and when idle.
        """
        ...

    def load_weights(self, policy_version: int, tensors: Mapping[str, "torch.Tensor"]) -> None:
        """Swap the weights in place between two steps; KV of older versions is never used for new prompts.

        Running generations go on and keep their KV: the caller interrupts them first if it is to be computed
        again.

        Raises: ValueError, which names the first such tensor, on a missing, surplus or misshapen tensor; then
        nothing has been changed.
        """
        ...

    def read_weights(self) -> "Mapping[str, torch.Tensor]":
        """The weights in use, under the names that they were published with; for checks."""
        ...

    def load(self) -> EngineLoad:
        """Current load, and totals."""
        ...

    def is_busy(self) -> bool:
        """Whether a step has anything to do."""
        ...


@runtime_checkable
class RunsByItself(Protocol):
    """Additional methods of an engine that steps by itself, in another process.

    `step` returns the samples of the engine's next step, and waits only while none has come; `abort` takes
    effect at once, and samples of an aborted generation from a step in flight are dropped. While generations
    run, `load_weights` is called after a pause that `is_settled`.
    """

    def on_step(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, whenever `step` has samples to return."""
        ...

    def has_stepped(self) -> bool:
        """Whether `step` would return without waiting."""
        ...

    def pause(self) -> None:
        """Let no further step begin; returns at once."""
        ...

    def is_settled(self) -> bool:
        """Whether the pause is complete, and `step` has returned all samples from before it."""
        ...

    def resume(self) -> None:
        """Let steps begin again, if they were paused."""
        ...


@runtime_checkable
class ReleasingEngine(Engine, Protocol):
    """An engine that can share its device with the trainer (`placement: colocated`).

    It is made without weights, and takes the device with `load_weights`.
    """

    def release(self) -> "OnDevice":
        """Free weights and KV cache, all of its device memory; nothing is running.

        No generation is added or stepped before the next `load_weights`.
        """
        ...


EngineFactory = Callable[["WorkerSettings", str], Engine]
"""`make(settings, model_directory)`: the function that `rollout.engine` names."""


def check_new(engine: Engine, name: str, *, is_cut: bool = False) -> None:
    """Check the attributes of a new engine.

    Raises: ConfigError if they are invalid, or the engine does not report kept sets although sampling
    `is_cut`.
    """
    if is_cut and not getattr(engine, "reports_kept_sets", False):
        raise ConfigError(
            f"`rollout.sampling` cuts tokens off (top_p, top_k, min_p or min_tokens), and {name} does not "
            f"tell which: its engine has no `reports_kept_sets`. {BIAS} Expected top_p: 1, top_k: 0, "
            "min_p: 0 and min_tokens: 0, or an engine whose `Sampled` bring `kept` (docs/engines.md), as "
            "`rollout.engine: torch`; vllm does where top_k is set."
        )
    for attribute, least in (("policy_version", 0), ("capacity", 1), ("kv_tokens", 0)):
        value = getattr(engine, attribute, None)
        if type(value) is not int or value < least:
            raise ConfigError(
                f"The engine that {name} made has {attribute} {value!r}; expected an int of at least {least}"
                + (
                    ": before the first load_weights it is 0, the version of the model directory"
                    if attribute == "policy_version"
                    else ""
                )
                + ". `launch.py conformance` checks the rest of what an engine must do."
            )


def check_generation(generation: Generation, *, context: int, vocabulary: int) -> None:
    """The checks that every engine makes of a generation. Raises: ValueError if it can never run.

    `context`: most prompt and response tokens together; `vocabulary`: token ids are below it.
    """
    prompt, response = generation.prompt_tokens, generation.response_tokens
    if len(prompt) == 0 or generation.max_new_tokens < 1:
        raise ValueError(
            f"Generation {generation.key} has {len(prompt)} prompt tokens and a budget of "
            f"{generation.max_new_tokens} tokens; expected at least one of each."
        )
    if (wanted := len(prompt) + len(response) + generation.max_new_tokens) > context:
        raise ValueError(
            f"Generation {generation.key} needs {len(prompt)} prompt + {len(response)} response + "
            f"{generation.max_new_tokens} new = {wanted} tokens; the engine's context is {context}. "
            "Lower rollout.max_prompt_tokens or rollout.max_response_tokens."
        )
    smallest, largest = min(*prompt, *response, prompt[0]), max(*prompt, *response, prompt[0])
    if smallest < 0 or largest >= vocabulary:
        raise ValueError(
            f"Generation {generation.key} has token ids from {smallest} to {largest}; the model knows 0 to "
            f"{vocabulary - 1}. Do tokenizer and model belong together?"
        )
