"""One vLLM instance behind the engine interface.

Invariants:
- A step is one step of vLLM's scheduler: prefill chunks, and one token for each decoding generation.
- The logprob of a token is that of the distribution that it was drawn from (vLLM's processed logprobs).
- Every prompt is salted by the number of weight updates before it began, so its prefix cache never crosses an
  update; running generations keep their KV over an update.
- A fresh generation's noise is a function of its seed, a resumed one's of its seed and its start position:
  vLLM cannot continue the noise of another instance. Fixed weights and temperature 0 make interruptions
  invisible.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from protocol.errors import RunError
from protocol.kept_sets import EVERYTHING
from protocol.settings import RolloutSettings, SamplingSettings
from workers.engines.interface import EngineLoad, Generation, Key, Sampled, check_generation
from workers.engines.stop_texts import StopTexts
from workers.engines.vllm import weights
from workers.engines.vllm.kept import KeptReader
from workers.engines.vllm.statistics import Statistics

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

    from workers.engines.vllm.adapter import LoadedAdapter

ENDINGS: dict[str | None, Literal["", "stop", "length"]] = {None: "", "stop": "stop", "length": "length"}


@dataclass(slots=True)
class _Live:
    """A generation in vLLM."""

    generation: Generation
    length: int  # prompt and response tokens so far
    drawn: int  # tokens of its response so far
    sampling: SamplingSettings
    is_trained: bool
    response: list[int] | None = None  # if stop strings may end it
    has_sampled: bool = False

    @property
    def key(self) -> Key:
        return self.generation.key


class VllmEngine:
    """Engine of workers/engines/interface.py over vLLM's own continuous batching."""

    continues_noise = False

    def __init__(
        self, llm: "LLMEngine", rollout: RolloutSettings, *, statistics: Statistics,
        stop_tokens: Sequence[int], shapes: weights.Shapes, adapter: "LoadedAdapter | None" = None,
        stop_texts: StopTexts | None = None,
    ) -> None:  # fmt: skip
        config = llm.vllm_config
        self.capacity = config.scheduler_config.max_num_seqs
        self.kv_tokens = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
        self.policy_version = 0
        self.llm = llm
        self._context: int = config.model_config.max_model_len
        self._vocabulary: int = config.model_config.get_vocab_size()
        self._is_spread = config.parallel_config.world_size > 1  # over several processes, one per device
        self._is_elsewhere = self._is_spread  # in another process, which gets tensors as files
        self._sampling, self._is_seeded = rollout.sampling, rollout.vllm.is_seeded
        self._stop_tokens, self._shapes, self._statistics = list(stop_tokens), shapes, statistics
        self.reports_kept_sets = not rollout.sampling.is_cut_unbounded
        self._stop_texts = stop_texts
        self._kept = KeptReader(rollout.sampling, stop_tokens=stop_tokens, vocabulary=self._vocabulary)
        self._live: dict[str, _Live] = {}  # by request id, in order of arrival
        self._adapter, self._updates = adapter, 0
        self._decode_steps = self._decode_tokens = self._decode_context = 0
        self._decode_s = self._prefill_s = 0.0
        self._pace_s = 0.0  # seconds of the newest step without prefill

    def warm_up(self) -> None:
        """Run the first step, which loads and compiles for seconds, before the worker is ready."""
        self.add(Generation((0, 0, 0), [0], [], 1, 0))
        while self.is_busy():
            self.step()
        self._decode_s = self._prefill_s = 0.0

    def add(self, generation: Generation) -> None:
        """Queue a generation. Raises: ValueError if it can never run, or its key is in use."""
        check_generation(generation, context=self._context, vocabulary=self._vocabulary)
        name = _request_id(generation.key)
        if name in self._live:
            raise ValueError(f"Generation {generation.key} is here already; a key names one generation.")
        tokens = [*generation.prompt_tokens, *generation.response_tokens]
        prompt = {"prompt_token_ids": tokens, "cache_salt": str(self._updates)}
        request = self._adapter.request if self._adapter else None
        parameters = self._parameters(generation)
        self.llm.add_request(name, prompt, parameters, lora_request=request)
        sampling, response = generation.sampling or self._sampling, generation.response_tokens
        self._live[name] = _Live(
            generation, len(tokens), len(response), sampling, generation.sampling is None,
            list(response) if sampling.stop else None,
        )  # fmt: skip

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these generations at once; unknown keys are ignored."""
        names = [name for name in map(_request_id, keys) if self._live.pop(name, None) is not None]
        if names:
            self.llm.abort_request(names)

    def step(self) -> list[Sampled]:
        """Run one step of vLLM; returns its samples. [] while it only prefills, and when idle."""
        if not self._is_to_step():
            return []
        prefilled = self._statistics.prefill_tokens
        outputs, seconds = self._stepped()
        decoding = [live for live in self._live.values() if live.has_sampled]
        context = sum(live.length for live in decoding)
        sampled: list[Sampled] = []
        for output in outputs:
            self._take(output, sampled)
        self._count(seconds, len(decoding), context, is_mixed=self._statistics.prefill_tokens > prefilled)
        return sampled

    def load_weights(self, policy_version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap the weights in place. Raises: ValueError on a wrong tensor; then nothing has changed."""
        if self._adapter:
            self._adapter.load(tensors)
        else:
            fitting = weights.fitting(tensors, self._shapes)
            weights.reload(self._reach(), fitting, is_elsewhere=self._is_elsewhere)
        self._updates += 1
        self._queue_again()
        if not self._live:
            self.llm.reset_prefix_cache()  # nothing would hit it again; this makes room
        self.policy_version = policy_version

    def read_weights(self) -> dict[str, torch.Tensor]:
        """The weights that the engine computes with, exactly; with an adapter, the sum.

        Raises: RunError with tensor parallelism.
        """
        if self._is_spread:
            raise RunError(
                "Weights are read back from one device only; rollout.vllm.tensor_parallel_size is more."
            )
        return self._held()

    def load(self) -> EngineLoad:
        """Current load, and totals. vLLM's own counts are a step old; newer requests count as waiting."""
        running = min(self._statistics.running, len(self._live))
        waiting = len(self._live) - running
        fresh = [live.key for live in self._live.values() if not live.has_sampled]
        return EngineLoad(
            running=running,
            waiting=waiting,
            resident_tokens=sum(live.length for live in self._live.values() if live.has_sampled),
            decode_steps=self._decode_steps,
            decode_tokens=self._decode_tokens,
            decode_s=self._decode_s,
            prefill_tokens=self._statistics.prefill_tokens,
            prefill_s=self._prefill_s,
            decode_context=self._decode_context,
            preemptions=self._statistics.preemptions,
            queued=tuple(fresh[len(fresh) - min(waiting, len(fresh)) :]),
            reused_tokens=self._statistics.reused_tokens,
        )

    def is_busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._live)

    def _queue_again(self) -> None:
        """Send requests without a token again under the new salt: under the old they would find older KV."""
        queued = [live.generation for live in self._live.values() if not live.has_sampled]
        self.abort([generation.key for generation in queued])
        for generation in queued:
            self.add(generation)

    def _is_to_step(self) -> bool:
        return bool(self._live)

    def _stepped(self) -> tuple[list["RequestOutput"], float]:
        """The output of vLLM's next step, and its seconds."""
        began = time.perf_counter()
        outputs = self.llm.step()
        return outputs, time.perf_counter() - began

    def _reach(self) -> weights.Reach:
        """A function that calls vLLM's workers."""
        return lambda method, **given: self.llm.collective_rpc(method, kwargs=given)

    def _held(self) -> dict[str, torch.Tensor]:
        return self.llm.collective_rpc("read_weights")[0]

    def _parameters(self, generation: Generation) -> SamplingParams:
        sampling = generation.sampling or self._sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            min_tokens=min(
                max(0, sampling.min_tokens - len(generation.response_tokens)), generation.max_new_tokens
            ),
            max_tokens=generation.max_new_tokens,
            stop_token_ids=self._stop_tokens,
            ignore_eos=True,  # the stop tokens include it
            seed=_seed(generation) if self._is_seeded and sampling.temperature else None,
            logprobs=self._kept.logprobs if generation.sampling is None else 0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )

    def _take(self, output: "RequestOutput", sampled: list[Sampled]) -> None:
        live = self._live[output.request_id]
        completion = output.outputs[0]
        if completion.finish_reason not in ENDINGS:
            raise RunError(
                f"vLLM ended generation {live.key} with `{completion.finish_reason}` by itself; expected "
                "stop or length. Its own lines in this log say why; the worker is started again."
            )
        tokens, last = completion.token_ids, len(completion.token_ids) - 1
        assert completion.logprobs is not None
        for place, (token, logprobs) in enumerate(zip(tokens, completion.logprobs, strict=True)):
            ending = ENDINGS[completion.finish_reason] if place == last else ""
            kept = self._kept.read(logprobs, live.drawn) if live.is_trained else EVERYTHING
            live.drawn += 1
            if is_ended := self._ends_by_text(live, token):
                ending = "stop"
            sampled.append(Sampled(live.key, token, logprobs[token].logprob, ending, kept))
            if is_ended:
                self.abort([live.key])
                return
        live.length += len(tokens)
        live.has_sampled = live.has_sampled or bool(tokens)
        if completion.finish_reason:
            del self._live[output.request_id]

    def _ends_by_text(self, live: _Live, token: int) -> bool:
        """Whether this token completes a string that ends the response."""
        if live.response is None or self._stop_texts is None:
            return False
        live.response.append(token)
        return self._stop_texts.ends(live.response, live.sampling)

    def _count(self, seconds: float, decoding: int, context: int, *, is_mixed: bool) -> None:
        """Count the time of a step.

        A mixed step costs decoding as much as the newest pure decode step, and prefill the rest; before there
        was any pure decode step, all of it counts as prefill.
        """
        if not decoding:
            self._prefill_s += seconds
            return
        if not is_mixed:
            self._pace_s = seconds
        elif not self._pace_s:
            self._prefill_s += seconds
            return
        decode_s = min(seconds, self._pace_s)
        self._decode_s += decode_s
        self._prefill_s += seconds - decode_s
        self._decode_steps += 1
        self._decode_tokens += decoding
        self._decode_context += context


def _request_id(key: Key) -> str:
    return "{}.{}.{}".format(*key)


def _seed(generation: Generation) -> int:
    """A seed for vLLM's generator, equal for equal (seed, position)."""
    word = f"{generation.seed} {len(generation.response_tokens)}".encode()
    return int.from_bytes(blake2b(word, digest_size=7).digest(), "little")
