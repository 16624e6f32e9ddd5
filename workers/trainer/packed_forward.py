"""Forward passes without padding: many sequences in one row, each attending only to itself.

Invariants: attention never crosses from one sequence to another, and keeps the windows of the model
(`check_no_leak` tests both before the first step); only positions that predict a sampled token get logits. In
models that would carry a state across, the sequences of a row are computed apart (`workers/models/apart.py`).

Shapes: T tokens of a packed row, N its sampled tokens, H heads, D size of a head, V vocabulary.

Measured for 128 sequences of 20 to 170 tokens (5,125 in all) on a 2-layer Qwen3 of hidden size 64, one
thread, forward / forward and backward: transformers' dense block mask 778 / 2217 ms; one causal SDPA per
sequence 50 / 143 ms; the same batched over buckets of similar length 50 / 160 ms. So the loop is kept.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from protocol.errors import ConfigError
from protocol.settings import TrainerSettings
from workers.models.apart import is_apart, set_apart
from workers.models.tail import ModelTail, called_as, tail_of
from workers.trainer.batch import TrainBatch
from workers.trainer.losses import KeptTokens, Softmax, chosen_logprobs, head_logprobs, parts_of
from workers.trainer.packing import plan, plan_padded
from workers.trainer.ranks import Ranks
from workers.trainer.sequence.group import SequenceGroup

log = logging.getLogger("workers")
PACKED_SDPA = "staleflow_packed"  # without `sdpa`, for which transformers checks `_supports_sdpa`


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One micro-batch on the device. An empty one is one token whose logits are not used."""

    tokens_1T: torch.Tensor
    positions_1T: torch.Tensor  # restart at 0 with every sequence
    lengths: list[int]
    predicting_N: torch.Tensor  # positions in the row whose logits predict a sampled token
    targets_N: torch.Tensor  # those tokens
    places_N: torch.Tensor  # their places among the sampled tokens of the batch
    kept: KeptTokens | None = None  # the set that each was drawn from; None: the whole vocabulary
    group: SequenceGroup | None = None  # the ranks that share the row, each with as many of its tokens


def pack_row(batch: TrainBatch, indices: Sequence[int], device: torch.device) -> PackedRow:
    """The sequences `indices` of the batch, side by side in one row."""
    tokens = [batch.tokens[index] for index in indices] or [np.zeros(1, dtype=np.int64)]
    predicting, targets, places, start = [], [], [], 0
    codes, words = [np.zeros(0, dtype="<i4")], [np.zeros(0, dtype="<i4")]
    starts = batch.response_starts
    for index in indices:
        positions = batch.positions[index]
        predicting.append(start + positions - 1)
        targets.append(batch.tokens[index][positions])
        places.append(np.arange(starts[index], starts[index] + len(positions)))
        start += len(batch.tokens[index])
        if batch.kept is not None:
            codes.append(batch.kept.codes[places[-1]])
            words.append(batch.kept.words[index])

    def to_device(arrays: Sequence[np.ndarray]) -> torch.Tensor:
        joined = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
        return torch.from_numpy(joined).to(device)

    return PackedRow(
        tokens_1T=to_device(tokens)[None],
        positions_1T=to_device([np.arange(len(sequence)) for sequence in tokens])[None],
        lengths=[len(sequence) for sequence in tokens],
        predicting_N=to_device(predicting),
        targets_N=to_device(targets),
        places_N=to_device(places),
        kept=KeptTokens.of(np.concatenate(codes), np.concatenate(words)),
    )


def pack_rows(
    batch: TrainBatch,
    indices: Sequence[int],
    model: PreTrainedModel,
    ranks: Ranks,
    *,
    options: TrainerSettings,
) -> list[PackedRow]:
    """The micro-batches of some sequences on this rank, or on the ranks that share rows with it."""
    lengths, size = [len(batch.tokens[index]) for index in indices], options.sequence_ranks
    budget = options.max_tokens_per_microbatch * size
    if is_apart(model):
        shares = plan_padded(lengths, ranks=ranks.size, max_tokens=budget)
    else:
        half = half_attention(model)
        shares = plan(lengths, ranks=ranks.size // size, max_tokens=budget, half_attention=half)
    mine = shares[ranks.rank // size]
    return [pack_row(batch, [indices[place] for place in some], ranks.device) for some in mine]


def choose_attention(device: torch.device, dtype: torch.dtype, *, is_shared: bool = False) -> str:
    """Name of the attention for packed rows: FlashAttention 2 where it runs, else SDPA per sequence.

    `is_shared`: several ranks share a row, which only SDPA supports here.
    """
    has_flash = (
        not is_shared
        and device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and is_flash_attn_2_available()
    )
    return "flash_attention_2" if has_flash else PACKED_SDPA


def half_attention(model: PreTrainedModel) -> float:
    """The sequence length in tokens at which attention costs as much as the rest of a layer.

    Per token and layer about 24 * width ** 2 against 2 * width * length operations, since it is causal.
    """
    return 12.0 * model.config.get_text_config().hidden_size


def packed_sdpa(
    module: torch.nn.Module,
    query_1HTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sequence_lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sequence_group: SequenceGroup | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of a row: an attention function as transformers calls it.

    `s_aux`: scores [H] of a sink, which takes a share of the weight and contributes no value.
    `sequence_group`: the ranks that share the row. Raises: ConfigError if the model needs attention that this
    function does not support.
    """
    if options.get("position_bias") is not None:
        raise ConfigError(
            "The model's attention uses position_bias, which packed training on this machine does not "
            "support. Expected softmax attention, plain, capped, in a sliding window or with sinks; choose "
            "another model."
        )
    if (group := sequence_group) is not None:
        query, key, value = (group.to_heads(of) for of in (query_1HTD, key_1HTD, value_1HTD))
        attended, _ = packed_sdpa(
            module, query, key, value, attention_mask, sequence_lengths=sequence_lengths, scaling=scaling,
            sliding_window=sliding_window, softcap=softcap,
            s_aux=None if s_aux is None else group.heads(s_aux),
        )  # fmt: skip
        return group.to_tokens(attended.transpose(1, 2)).transpose(1, 2).contiguous(), None
    attend = partial(_attend, scaling=scaling, sliding_window=sliding_window, softcap=softcap, sinks_H=s_aux)
    sequences = zip(
        *(states.split(sequence_lengths, dim=2) for states in (query_1HTD, key_1HTD, value_1HTD)), strict=True
    )
    parts = [attend(query, key, value) for query, key, value in sequences]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _attend(
    query_1HTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTD: torch.Tensor,
    *,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    """Causal attention of one sequence."""
    length = query_1HTD.shape[2]
    window = sliding_window if sliding_window is not None and length > sliding_window else None
    if softcap is not None or sinks_H is not None:
        mask = _mask(length, window, query_1HTD.device)
        return _explicit(
            query_1HTD, key_1HTD, value_1HTD, mask, scaling=scaling, softcap=softcap, sinks_H=sinks_H
        )
    mask = None if window is None else _mask(length, window, query_1HTD.device)
    return torch.nn.functional.scaled_dot_product_attention(
        query_1HTD,
        key_1HTD,
        value_1HTD,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query_1HTD.shape[1] != key_1HTD.shape[1],
    )


def _mask(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Which keys (columns) a query may see: itself and those before it, in a window only the last ones."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return mask if window is None else mask.triu(1 - window)


def _explicit(
    query_1HTD: torch.Tensor,
    key_1HTD: torch.Tensor,
    value_1HTD: torch.Tensor,
    mask_TT: torch.Tensor,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with soft-capped scores (Gemma 2) or sinks (gpt-oss), which SDPA does not support."""
    repeats = query_1HTD.shape[1] // key_1HTD.shape[1]
    key_1HTD, value_1HTD = (states.repeat_interleave(repeats, dim=1) for states in (key_1HTD, value_1HTD))
    scale: float = query_1HTD.shape[-1] ** -0.5 if scaling is None else scaling
    scores_1HTT = query_1HTD @ key_1HTD.mT * scale
    if softcap is not None:
        scores_1HTT = torch.tanh(scores_1HTT / softcap) * softcap
    scores_1HTT = scores_1HTT.masked_fill(~mask_TT, -torch.inf)
    if sinks_H is None:
        weights_1HTT = scores_1HTT.softmax(-1, dtype=torch.float32)
    else:
        sinks_1HT1 = sinks_H.view(1, -1, 1, 1).expand(*scores_1HTT.shape[:-1], 1).to(scores_1HTT.dtype)
        with_sinks = torch.cat([scores_1HTT, sinks_1HT1], dim=-1)
        weights_1HTT = with_sinks.softmax(-1, dtype=torch.float32)[..., :-1]
    return weights_1HTT.to(value_1HTD.dtype) @ value_1HTD


AttentionInterface.register(PACKED_SDPA, packed_sdpa)


def forward_row(model: PreTrainedModel, row: PackedRow) -> torch.Tensor:
    """Logits [N, V] of the positions that predict response tokens, in the dtype of the forward pass."""
    return model(**_arguments(model, row), logits_to_keep=row.predicting_N).logits[0]


def _arguments(model: PreTrainedModel, row: PackedRow) -> dict[str, Any]:
    """The arguments of the model's forward pass, except the positions that get logits."""
    arguments: dict[str, Any] = {
        "input_ids": row.tokens_1T,
        "position_ids": row.positions_1T,
        "use_cache": False,
    }
    if is_apart(model):
        return arguments | {"sequence_lengths": row.lengths}
    if model.config._attn_implementation == PACKED_SDPA:
        shared = {} if row.group is None else {"sequence_group": row.group}
        return arguments | {"sequence_lengths": row.lengths} | shared
    bounds = torch.tensor([0, *row.lengths], device=row.tokens_1T.device)
    ends, longest = bounds.cumsum(0, dtype=torch.int32), max(row.lengths)
    return arguments | {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def response_logprobs(
    model: PreTrainedModel, row: PackedRow, *, temperature: float, is_entropy_trained: bool = False,
    tail: ModelTail | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logprobs and entropy of the row's response tokens at the sampling temperature: [N], [N], in nats.

    With the model's `tail`, logits of only one chunk exist at a time; if there is only one chunk, its logits
    are kept for the backward pass.
    """
    if tail is not None and len(parts_of(len(row.targets_N), tail.head.out_features)) > 1:
        softmax = Softmax(temperature, is_entropy_trained, row.kept)
        with called_as(model, partial(_chunked, tail, row, _arguments(model, row), softmax)):
            return model()
    logits_NV = forward_row(model, row)
    return chosen_logprobs(
        logits_NV, row.targets_N, temperature=temperature, is_entropy_trained=is_entropy_trained,
        kept=row.kept,
    )  # fmt: skip


def _chunked(
    tail: ModelTail, row: PackedRow, arguments: dict[str, Any], softmax: Softmax
) -> tuple[torch.Tensor, torch.Tensor]:
    """Called in place of the model's forward pass, so that FSDP gathers its weights."""
    found = tail.states(arguments, row.predicting_N)
    assert found is not None, "proven_tail has looked"
    return head_logprobs(
        found[0],
        tail.head,
        row.targets_N,
        logits_of=lambda states_nH, linear: tail.logits(states_nH, found[1], arguments, linear),
        softmax=softmax,
    )


def proven_tail(model: PreTrainedModel, device: torch.device) -> ModelTail | None:
    """The model's tail, if it alone reproduces the logits of the whole model; else None, with a log warning.

    Collective.
    """
    ids = torch.arange(1, 6, device=device) % model.config.get_text_config().vocab_size
    row, tail = whole_row([ids]), tail_of(model)
    if tail is not None:
        with torch.no_grad():
            whole = forward_row(model, row)
            with called_as(model, partial(_by_the_tail, tail, row, _arguments(model, row))):
                found = model()
        bound = tolerance(whole.dtype) * max(1.0, whole.abs().max().item())
        if found is not None and (found - whole).abs().max().item() <= bound:
            return tail
    log.warning("The logits of a micro-batch of %s are made at once, not in chunks.", type(model).__name__)
    return None


def _by_the_tail(tail: ModelTail, row: PackedRow, arguments: dict[str, Any]) -> torch.Tensor | None:
    """Logits of a row, two tokens at a time; None if the tail does not support this model."""
    if (found := tail.states(arguments, row.predicting_N)) is None:
        return None
    return torch.cat([tail.logits(states, found[1], arguments) for states in found[0].split(2)])


def compute_apart(model: PreTrainedModel) -> None:
    """Compute the sequences of the model's rows separately from now on."""
    set_apart(model, names_lengths=model.config._attn_implementation == PACKED_SDPA)


def tolerance(dtype: torch.dtype) -> float:
    """Largest allowed difference of logits, as a share of the largest logit."""
    return 1e-4 if dtype == torch.float32 else 0.1


def whole_row(sequences: Sequence[torch.Tensor]) -> PackedRow:
    """A row of these sequences side by side, with logits at every position."""
    tokens_T, lengths = torch.cat(list(sequences)), [len(sequence) for sequence in sequences]
    places_T = torch.arange(len(tokens_T), device=tokens_T.device)
    positions_T = torch.cat([places_T[:length] for length in lengths])
    return PackedRow(
        tokens_1T=tokens_T[None],
        positions_1T=positions_T[None],
        lengths=lengths,
        predicting_N=places_T,
        targets_N=tokens_T,
        places_N=places_T,
    )
