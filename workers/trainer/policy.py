"""Loads the model that is trained, before it is sharded: whole, or frozen with an adapter beside its layers.

Invariant: a model that would be trained or saved wrong is refused here with an error message.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from protocol.model_shape import expert_count
from protocol.settings import WorkerSettings
from workers.models.apart import is_apart
from workers.models.file_layout import AS_IT_IS, FileLayout, file_layout
from workers.models.lora import model_digest, saved_config
from workers.models.lora_layers import add_adapter
from workers.models.model import load_causal_lm, stored_names
from workers.models.tail import ModelTail
from workers.trainer.packed_forward import choose_attention, compute_apart, proven_tail
from workers.trainer.ranks import Ranks
from workers.trainer.sequence.group import SequenceGroup
from workers.trainer.sequence.no_leak import check_no_leak
from workers.trainer.sequence.shared_rows import check_shared
from workers.trainer.sharding import reshard

log = logging.getLogger("workers")


class Policy(NamedTuple):
    """The trained model, with its adapter if it has one."""

    model: PreTrainedModel
    adapter: dict[str, object] | None = None  # adapter_config.json
    digest: torch.Tensor | None = None  # of the model below the adapter, as published with each version
    layout: FileLayout = AS_IT_IS


def load_packed(
    directory: Path, *, device: torch.device, forward_dtype: torch.dtype, dtype: torch.dtype = torch.float32,
    is_shared: bool = False, like: PreTrainedModel | None = None,
) -> PreTrainedModel:  # fmt: skip
    """The model with the attention of packed rows. Raises: ConfigError if it cannot be loaded.

    `is_shared`: several ranks share a row. `like`: a checked model, whose way to compute rows is taken over.
    """
    attention = choose_attention(device, forward_dtype, is_shared=is_shared)
    model = load_causal_lm(directory, dtype=dtype, device=device, attention=attention)
    if like is not None and is_apart(like):
        compute_apart(model)
    return model


def load_policy(
    settings: WorkerSettings, directory: Path, *, device: torch.device, forward_dtype: torch.dtype
) -> Policy:
    """The model in float32; with `trainer.lora`, a frozen model with an adapter in float32.

    The frozen weights are in the precision of the forward pass, which needs no more.

    Raises: ConfigError if it cannot be loaded, or its weights cannot be written back as its files hold them.
    """
    lora = settings.trainer.lora
    if not lora.rank:
        model = load_packed(
            directory, device=device, forward_dtype=forward_dtype,
            is_shared=settings.trainer.sequence_ranks > 1,
        )  # fmt: skip
        return Policy(model, layout=file_layout(model, stored_names(directory)))
    model = load_packed(directory, device=device, forward_dtype=forward_dtype, dtype=forward_dtype)
    if count := expert_count(model.config.to_dict()):
        log.warning("The %d experts of this model get no adapter: they are no linear layers.", count)
    layers = add_adapter(model, lora, seed=settings.seed)
    config = saved_config(lora, layers, directory, has_experts=count > 0)
    return Policy(model, config, model_digest(directory))


def check_policy(
    model: PreTrainedModel, settings: WorkerSettings, ranks: Ranks, group: SequenceGroup | None, *,
    forward_dtype: torch.dtype,
) -> ModelTail | None:  # fmt: skip
    """The model's tail, if logits can be made in chunks; else None.

    Raises: ConfigError if packed rows of this run would be computed wrong. Collective.
    """
    rollout = settings.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    row = max(longest, settings.trainer.max_tokens_per_microbatch)
    check_no_leak(model, ranks.device, longest=longest, row=row, dtype=forward_dtype)
    if group is not None and is_apart(model):
        raise ConfigError(
            f"{type(model).__name__} carries state from token to token, which ranks that share a row cannot "
            f"hand on; trainer.sequence_ranks is {group.size}. Expected 1 with this model."
        )
    if group is not None:
        check_shared(model, ranks, group)
    tail = proven_tail(model, ranks.device)
    reshard(model)
    return tail
