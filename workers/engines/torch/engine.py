"""The embedded engine: assigns generations to rows, and reports the samples of each step.

Invariants:
- Rows 0 to n-1 are running, in no particular order; the last row moves into the place of one that ends.
- A row's newest token is never in its KV cache: the next decode step feeds it. So a prefill computes all
  tokens of a generation but the last, and every token is sampled by the same decode step.
- First come, first served; siblings of a prompt, together or later under the same weights, cost one prefill.
- Of agents, rows of ended turns are parked: a following turn here is prefilled from where the last one ended.

Shapes: B running generations, T tokens.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from protocol.kept_sets import EVERYTHING, KeptSet
from protocol.model_shape import length_limits, spans
from protocol.settings import RolloutSettings, SamplingSettings, WorkerSettings
from workers.engines.interface import EngineLoad, Generation, Key, Sampled, check_generation
from workers.engines.stop_texts import StopTexts, stop_texts
from workers.engines.torch.cache import PrefixCache
from workers.engines.torch.forward import Forward, check_lengths
from workers.engines.torch.parked import Match, ParkedRows
from workers.engines.torch.sampling import kept_sets, sample, uniform_noise
from workers.models.file_layout import AS_IT_IS, file_layout, split
from workers.models.lora import MergedAdapter
from workers.models.model import load_causal_lm, pick_device, replace_weights, stop_tokens

# per step, so that running generations are not delayed for long
PREFILL_TOKENS = {"cpu": 2048, "cuda": 16_384}
EXTEND_CELLS = 1 << 26  # tokens times attended positions, of one pass that extends rows
PREFIX_SHARE = 8  # prompts kept for later siblings take at most one eighth of the KV cache, in addition to it
_TOKEN, _POSITION, _DRAWN, _LEFT, _SEED, _KIND = range(6)  # rows of TorchEngine._state


class _Waiting(NamedTuple):
    generation: Generation
    tokens_T: np.ndarray  # prompt and response so far, int32
    prefix: bytes  # all tokens but the last, which must be in the KV cache


class _Extended(NamedTuple):
    """A row that holds the beginning of the tokens that it needs."""

    waiting: _Waiting
    start: int  # tokens that it holds
    row: int

    @property
    def missing(self) -> int:
        return len(self.waiting.tokens_T) - 1 - self.start


def make_engine(
    settings: WorkerSettings, model_directory: str, kind: type["TorchEngine"] | None = None
) -> "TorchEngine":
    """An engine for the model in this directory; `kind` is a subclass to make instead.

    Raises: ConfigError if the model cannot be loaded or run.
    """
    lora = settings.trainer.lora
    model = load_causal_lm(
        model_directory, dtype=settings.model.dtype, device=pick_device(settings.rollout.device),
        needs_weights=bool(lora.rank),
    )  # fmt: skip
    stops = stop_tokens(model.generation_config, model_directory)
    adapter = MergedAdapter(model, lora, model_directory) if lora.rank else None
    texts = stop_texts(model_directory, settings.rollout.sampling, settings.evaluation_sampling)
    make = kind or TorchEngine
    return make(
        model, settings.rollout, stop_tokens=stops, adapter=adapter, stop_texts=texts,
        parks_turns=settings.agent.is_on, keeps_kv=settings.keeps_kv,
    )  # fmt: skip


class TorchEngine:
    """Engine of workers/engines/interface.py, over one model.

    A stop token is part of its response. A generation that runs over a swap of weights keeps its KV. At
    temperature 0, see `sampling.sample` for what the logprob is.
    """

    continues_noise = True
    reports_kept_sets = True

    def __init__(
        self, model: PreTrainedModel, rollout: RolloutSettings, *, stop_tokens: Sequence[int],
        adapter: MergedAdapter | None = None, stop_texts: StopTexts | None = None, parks_turns: bool = False,
        keeps_kv: bool = False,
    ) -> None:  # fmt: skip
        config = model.config.get_text_config(decoder=True)
        longest = rollout.max_prompt_tokens + rollout.max_response_tokens
        shape = config.to_dict()
        unchecked = [tokens for tokens in spans(shape).values() if tokens >= longest]
        limits = [limit.tokens for limit in length_limits(shape)]
        positions: int = getattr(config, "max_position_embeddings", None) or longest
        self._context = min([positions, *unchecked, *limits])
        self.capacity = rollout.max_running
        self.kv_tokens = self.capacity * min(longest, self._context)
        self.policy_version = 0
        self._kinds = [rollout.sampling]  # all ways of sampling so far
        self._model, self._adapter, self._stop_texts = model, adapter, stop_texts
        self._layout = AS_IT_IS if adapter else file_layout(model)
        self._responses: dict[Key, list[int]] = {}  # of generations that a stop string may end
        self._forward = Forward(model, max_rows=self.capacity, max_length=self._context)
        check_lengths(model, longest=longest)
        self._parked = ParkedRows(self._forward.cache, rows=self.capacity)
        self._parks_turns, self._keeps_kv = parks_turns, keeps_kv
        self._texts: dict[Key, list[int]] = {}  # all tokens of running generations, if turns are parked
        self._prefixes = PrefixCache(max_tokens=self.kv_tokens // PREFIX_SHARE)
        self._is_stop_V = np.zeros(config.vocab_size, dtype=bool)
        self._is_stop_V[[token for token in stop_tokens if 0 <= token < len(self._is_stop_V)]] = True
        self._waiting: dict[Key, _Waiting] = {}
        self._keys: list[Key] = []  # by row
        self._rows: dict[Key, int] = {}
        self._state = np.zeros((6, self.capacity), dtype=np.int64)
        self._decode_steps = self._decode_tokens = self._prefill_tokens = self._decode_context = 0
        self._reused_tokens = 0
        self._decode_s = self._prefill_s = 0.0

    def add(self, generation: Generation) -> None:
        """Queue a generation. Raises: ValueError if it can never run, or its key is in use."""
        check_generation(generation, context=self._context, vocabulary=len(self._is_stop_V))
        if generation.key in self._rows or generation.key in self._waiting:
            raise ValueError(f"Generation {generation.key} is here already; a key names one generation.")
        tokens_T = np.asarray([*generation.prompt_tokens, *generation.response_tokens], dtype=np.int32)
        self._waiting[generation.key] = _Waiting(generation, tokens_T, tokens_T[:-1].tobytes())

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these generations at once; unknown keys are ignored."""
        for key in keys:
            self._waiting.pop(key, None)
            self._responses.pop(key, None)
            if key in self._rows:
                self._release(self._rows[key])
                self._texts.pop(key, None)

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        """Admit what fits, prefill it, and sample one token for every running generation; [] when idle."""
        if self._waiting and len(self._keys) < self.capacity:
            started = time.perf_counter()
            self._admit()
            self._prefill_s += time.perf_counter() - started
        if not self._keys:
            return []
        started = time.perf_counter()
        self._decode_context += self._resident_tokens()
        sampled = self._decode()
        self._decode_s += time.perf_counter() - started
        self._decode_steps += 1
        self._decode_tokens += len(sampled)
        return sampled

    def load_weights(self, policy_version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap the weights in place. Raises: ValueError on a wrong tensor; then nothing has changed."""
        if self._adapter:
            self._adapter.load(tensors)
        else:
            replace_weights(self._model, tensors, self._layout)
        self._prefixes.clear()
        self._parked.has_new_weights((key[:2] for key in self._keys), keeps=self._keeps_kv)
        self.policy_version = policy_version

    def read_weights(self) -> dict[str, torch.Tensor]:
        """The weights in use, named as in the model's files; of tied ones the first name only."""
        own = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        return split(own, self._layout)

    def load(self) -> EngineLoad:
        """Current load, and totals. A prefill shared by siblings is computed, and counts, once."""
        return EngineLoad(
            running=len(self._keys),
            waiting=len(self._waiting),
            resident_tokens=self._resident_tokens(),
            decode_steps=self._decode_steps,
            decode_tokens=self._decode_tokens,
            decode_s=self._decode_s,
            prefill_tokens=self._prefill_tokens,
            prefill_s=self._prefill_s,
            decode_context=self._decode_context,
            queued=tuple(self._waiting),
            parked_tokens=self._parked.tokens,
            reused_tokens=self._reused_tokens,
        )

    def is_busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._keys or self._waiting)

    def _resident_tokens(self) -> int:
        return int(self._state[_POSITION, : len(self._keys)].sum())

    def _admit(self) -> None:
        """Give rows to waiting generations, as far as rows and the prefill budget last, and fill their KV."""
        budget = PREFILL_TOKENS.get(self._model.device.type, PREFILL_TOKENS["cpu"])
        missing: dict[bytes, tuple[_Waiting, list[int]]] = {}  # to compute, and the rows that need each
        extended: list[_Extended] = []
        while self._waiting and len(self._keys) < self.capacity:
            waiting = next(iter(self._waiting.values()))
            cached = self._prefixes.get(waiting.prefix)
            match = None if cached or waiting.prefix in missing else self._match(waiting)
            if waiting.prefix and cached is None and waiting.prefix not in missing:
                count = len(waiting.tokens_T) - 1 - (match.shared if match else 0)
                if (missing or extended) and count > budget:
                    break
                budget -= count
                if match is None:
                    missing[waiting.prefix] = (waiting, [])
            row = self._place(waiting, match)
            if match is not None:
                extended.append(_Extended(waiting, match.shared, row))
            elif cached is not None:
                self._forward.cache.install(cached.computed, [(0, row)], length=cached.length)
            elif waiting.prefix:
                missing[waiting.prefix][1].append(row)
            else:
                self._forward.cache.states.empty(row)
        batch: list[tuple[_Waiting, list[int]]] = []
        most = self._forward.most_padding
        for entry in sorted(missing.values(), key=lambda entry: len(entry[0].tokens_T)):
            if batch and (len(entry[0].tokens_T) - len(batch[-1][0].tokens_T)) * len(batch) > most:
                self._prefill(batch)
                batch = []
            batch.append(entry)
        if batch:
            self._prefill(batch)
        self._extend_all([one for one in extended if one.missing])

    def _match(self, waiting: _Waiting) -> Match | None:
        """A parked row with the beginning of its tokens, if there is one."""
        group, member, _ = waiting.generation.key
        return self._parked.match((group, member), waiting.tokens_T[:-1])

    def _place(self, waiting: _Waiting, match: Match | None) -> int:
        """Give a generation the next row, with the tokens of the match."""
        generation, row = waiting.generation, len(self._keys)
        if match is None:
            self._parked.vacate(row)
        else:
            self._parked.take(generation.key[:2], match, row)
            self._reused_tokens += match.shared
        if self._parks_turns:
            self._texts[generation.key] = waiting.tokens_T.tolist()
        del self._waiting[generation.key]
        self._keys.append(generation.key)
        self._rows[generation.key] = row
        position, drawn = len(waiting.tokens_T) - 1, len(generation.response_tokens)
        seed = generation.seed % 2**63
        kind = self._kind(generation.sampling)
        self._state[:, row] = (waiting.tokens_T[-1], position, drawn, generation.max_new_tokens, seed, kind)
        if self._kinds[kind].stop:
            self._responses[generation.key] = list(generation.response_tokens)
        return row

    def _kind(self, sampling: SamplingSettings | None) -> int:
        """Place in `_kinds` of a way of sampling; None is training's."""
        if sampling is None:
            return 0
        if sampling not in self._kinds:
            self._kinds.append(sampling)
        return self._kinds.index(sampling)

    def _prefill(self, batch: list[tuple[_Waiting, list[int]]]) -> None:
        """Compute these prefixes, sorted by length, in one pass; copy each into its rows."""
        longest = len(batch[-1][0].tokens_T) - 1
        tokens_BT = np.zeros((len(batch), longest), dtype=np.int64)
        for index, (waiting, _) in enumerate(batch):
            tokens_BT[index, : len(waiting.tokens_T) - 1] = waiting.tokens_T[:-1]
            self._prefill_tokens += len(waiting.tokens_T) - 1
        computed = self._forward.prefill(torch.from_numpy(tokens_BT).to(self._model.device))
        pairs = [(index, row) for index, (_, rows) in enumerate(batch) for row in rows]
        self._forward.cache.install(computed, pairs, length=longest)
        for index, (waiting, _) in enumerate(batch):
            if not len(waiting.generation.response_tokens):  # a resumed response has no siblings
                self._prefixes.put(waiting.prefix, computed, index, length=len(waiting.tokens_T) - 1)
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)  # else the next decode step's time would include it

    def _extend_all(self, extended: list[_Extended]) -> None:
        """Compute the missing tokens of rows, several rows per pass if that takes little padding."""
        batch: list[_Extended] = []
        for one in sorted(extended, key=lambda one: one.missing):
            ends = max(each.start for each in [*batch, one]) + one.missing
            padding = (one.missing - batch[-1].missing) * len(batch) if batch else 0
            is_full = ends > self._context or (len(batch) + 1) * one.missing * ends > EXTEND_CELLS
            if batch and (is_full or padding > self._forward.most_padding):
                self._extend(batch)
                batch = []
            batch.append(one)
        if batch:
            self._extend(batch)

    def _extend(self, batch: list[_Extended]) -> None:
        """Compute the missing tokens of these rows, sorted by their number, in one pass."""
        tokens_BT = np.zeros((len(batch), batch[-1].missing), dtype=np.int64)
        for index, (waiting, start, _) in enumerate(batch):
            tokens_BT[index, : batch[index].missing] = waiting.tokens_T[start:-1]
            self._prefill_tokens += batch[index].missing
        device = self._model.device
        self._forward.extend(
            torch.from_numpy(tokens_BT).to(device), [one.start for one in batch], [one.row for one in batch]
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _decode(self) -> list[Sampled]:
        """Feed every row's newest token, sample the next one, and free ended rows."""
        state, device = self._state[:, : len(self._keys)], self._model.device
        noise_B = torch.from_numpy(uniform_noise(state[_SEED], state[_DRAWN])).to(device)
        tokens_B, positions_B = torch.tensor(state[[_TOKEN, _POSITION]], device=device).unbind(0)
        logits_BV = self._forward.decode(tokens_B, positions_B, longest=int(state[_POSITION].max()))
        tokens_B, sampled_logprobs_B, kept_B = self._sample(logits_BV, noise_B, state[_KIND], state[_DRAWN])
        # float64 holds tokens and logprobs exactly, so one transfer does
        both_2B = torch.stack([tokens_B.double(), sampled_logprobs_B.double()])
        drawn_B, logprobs_B = both_2B.cpu().numpy()
        state[_TOKEN] = drawn_B
        state[_POSITION] += 1
        state[_DRAWN] += 1
        state[_LEFT] -= 1
        is_stop_B = self._is_stop_V[state[_TOKEN]] | self._ends_by_text(state)
        ended = np.flatnonzero(is_stop_B | (state[_LEFT] == 0))[::-1].tolist()
        endings: list[Literal["", "stop", "length"]] = [""] * len(drawn_B)
        for row in ended:
            endings[row] = "stop" if is_stop_B[row] else "length"
        tokens, logprobs = state[_TOKEN].tolist(), logprobs_B.tolist()
        sampled = list(map(Sampled, self._keys, tokens, logprobs, endings, kept_B))
        if self._parks_turns:
            for key, token in zip(self._keys, tokens, strict=True):
                self._texts[key].append(token)
        for row in ended:  # from the last on, so that the row that moves is a running one
            if self._parks_turns:
                self._park(row)
            else:
                self._release(row)
        return sampled

    def _park(self, row: int) -> None:
        """Free the row of an ended turn, and keep its content for the next turn."""
        key, last = self._keys[row], len(self._keys) - 1
        length = int(self._state[_POSITION, row])
        if row != last:
            self._forward.cache.swap(row, last, length=max(length, int(self._state[_POSITION, last])))
        self._release(row, has_moved=True)
        tokens_T = np.asarray(self._texts.pop(key)[:length], dtype=np.int32)
        self._parked.put(key[:2], last, tokens_T)

    def _sample(
        self, logits_BV: torch.Tensor, noise_B: torch.Tensor, kinds_B: np.ndarray, drawn_B: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, list[KeptSet]]:
        """`sampling.sample` with each row's settings: tokens, logprobs, kept sets of training's rows."""
        found = np.unique(kinds_B).tolist()
        tokens_B = torch.empty(len(kinds_B), dtype=torch.int64, device=logits_BV.device)
        logprobs_B = torch.empty(len(kinds_B), device=logits_BV.device)
        kept_B = [EVERYTHING] * len(kinds_B)
        for kind in found:
            some, sampling = np.flatnonzero(kinds_B == kind), self._kinds[kind]
            rows = torch.from_numpy(some).to(logits_BV.device) if len(found) > 1 else slice(None)
            logits_bV = logits_BV[rows]
            if (is_young_b := drawn_B[some] < sampling.min_tokens).any():
                logits_bV = self._without_stops(logits_bV, is_young_b)
            drawn = sample(logits_bV, noise_B[rows], sampling)
            tokens_B[rows], logprobs_B[rows] = drawn.tokens_B, drawn.logprobs_B
            if kind == 0 and drawn.is_kept_BV is not None:  # evaluations are not trained on
                for row, kept in zip(some.tolist(), kept_sets(drawn.is_kept_BV), strict=True):
                    kept_B[row] = kept
        return tokens_B, logprobs_B, kept_B

    def _without_stops(self, logits_BV: torch.Tensor, is_young_B: np.ndarray) -> torch.Tensor:
        """Logits without stop tokens in rows below their least length."""
        is_banned_BV = torch.from_numpy(np.outer(is_young_B, self._is_stop_V)).to(logits_BV.device)
        return logits_BV.masked_fill(is_banned_BV, -torch.inf)

    def _ends_by_text(self, state: np.ndarray) -> np.ndarray:
        """Which rows have just completed a stop string."""
        is_ended_B = np.zeros(state.shape[1], dtype=bool)
        for row, key in enumerate(self._keys) if self._responses else ():
            if (response := self._responses.get(key)) is not None:
                response.append(int(state[_TOKEN, row]))
                assert self._stop_texts is not None, "made with all ways of sampling that ask for one"
                is_ended_B[row] = self._stop_texts.ends(response, self._kinds[state[_KIND, row]])
        return is_ended_B

    def _release(self, row: int, *, has_moved: bool = False) -> None:
        """Free a row; the last one takes its place; `has_moved`: its keys and values are there already."""
        self._responses.pop(self._keys[row], None)
        del self._rows[self._keys[row]]
        last, moved = len(self._keys) - 1, self._keys.pop()
        if row != last:
            if not has_moved:
                self._forward.cache.move(last, row, length=int(self._state[_POSITION, last]))
            self._state[:, row] = self._state[:, last]
            self._keys[row] = moved
            self._rows[moved] = row
