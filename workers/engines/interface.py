"""What a rollout engine must do; the rollout worker knows nothing else of it.

Invariants that every engine keeps (the conformance kit checks them):
- `step` never blocks longer than one step of its batch; all calls after the making come from one thread.
  An engine whose steps run elsewhere (`RunsByItself`) need not block at all.
- A token and its logprob are reported exactly once, by the step that sampled it, with the policy version in
  force.
- The logprob is that of the distribution sampled from: after min_tokens, temperature, top-k, top-p and min-p.
- Equal weights, prompt, seed and position to go on from give equal tokens. Where `continues_noise`, the noise
  of a response token is a function of (seed, its position in the response) alone, so an interrupted and
  resumed response goes on as if nothing had happened when the weights are the same.
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
"""(group, member, attempt): names one generation in an engine."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One trajectory to generate, or to go on with."""

    key: Key
    prompt_tokens: Sequence[int]
    response_tokens: Sequence[
        int
    ]  # generated before, possibly elsewhere; not sampled again, not reported again
    max_new_tokens: int  # >= 1
    seed: int
    sampling: "SamplingSettings | None" = None  # instead of `rollout.sampling`


class Sampled(NamedTuple):
    """One token of one generation, out of one engine step."""

    key: Key
    token: int
    logprob: float
    ending: Literal["", "stop", "length"]
    kept: KeptSet = EVERYTHING  # what it was drawn from; asked of an engine with `reports_kept_sets` only


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load and totals since start; units as in protocol.messages.InstanceStatus."""

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
    parked_tokens: int = 0  # of ended turns, kept in the KV cache while nobody needs the room
    reused_tokens: int = 0  # of prompts, that were in the KV cache as parts of turns before


class Engine(Protocol):
    """One replica of the policy that generates."""

    capacity: int  # generations that it runs at once
    kv_tokens: int  # tokens that its KV cache holds
    policy_version: int  # of the weights in force; 0 when it is made: the model directory has version 0
    continues_noise: bool  # see above; at temperature 0 every engine goes on as if nothing had happened
    reports_kept_sets: bool  # whether `Sampled.kept` is told; an engine without it is one that does not

    def add(self, generation: Generation) -> None:
        """Queue a generation.

        Raises: ValueError, with any words, if it can never run (`check_generation`), or its key is in use;
        what is here is left alone.
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

        What runs meanwhile goes on and keeps its KV: the caller interrupts it first if it is to be computed
        again.

        Raises: ValueError, which names the first such tensor, on a missing, surplus or misshapen one, and
        then nothing has been changed.
        """
        ...

    def read_weights(self) -> "Mapping[str, torch.Tensor]":
        """The weights that it computes with, under the names that they were published with; for checks."""
        ...

    def load(self) -> EngineLoad:
        """Load now, and totals."""
        ...

    def is_busy(self) -> bool:
        """Whether a step would do anything."""
        ...


@runtime_checkable
class RunsByItself(Protocol):
    """What an engine has besides that steps by itself, in another process, whether anybody looks or not.

    `step` hands over what the next of its steps sampled, and waits only while nothing has come; `abort`
    forgets at once, and what a step in flight samples for an aborted generation is never told. While
    generations run, `load_weights` is called behind a pause that `is_settled`.
    """

    def on_step(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, whenever there is something for `step` to hand over."""
        ...

    def has_stepped(self) -> bool:
        """Whether `step` would not wait."""
        ...

    def pause(self) -> None:
        """Let no further step begin; returns at once."""
        ...

    def is_settled(self) -> bool:
        """Whether the pause is complete, and `step` has handed over all that was sampled before it."""
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
        """Free weights and KV cache, all that it has on the device; nothing is running.

        Nothing is added or stepped before the next `load_weights`.
        """
        ...


EngineFactory = Callable[["WorkerSettings", str], Engine]
"""`make(settings, model_directory)`: the attribute that `rollout.engine` names."""


def check_new(engine: Engine, name: str, *, is_cut: bool = False) -> None:
    """Check what an engine that was just made says of itself.

    Raises: ConfigError if no engine can be so, or if it cannot do what the run needs: tell what it kept where
    sampling `is_cut`.
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
    """What every engine refuses alike. Raises: ValueError if this can never run.

    `context`: the most prompt and response tokens together; `vocabulary`: token ids are below it.
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
