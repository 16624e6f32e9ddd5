"""StaleFlow's extension of vLLM's workers (`worker_extension_cls`): a complete reload, and a read-back.

Invariants: after `replace_weights` every layer computes with the new weights, also a tied output layer, of
which vLLM's own reload keeps the old packed copy (on a CPU), and experts, which it leaves unpacked there;
`read_weights` relies only on what the layers do: a linear layer's weight is its output for the identity
matrix, exact in every precision, since vLLM packs some weights and drops the original. An adapter's part is
added from the layer's own buffers.
"""

from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from workers.engines.vllm import in_core
from workers.engines.vllm.experts import pack_again, read_experts

in_core.begin()  # the first of our code that a process of vLLM runs, before it loads a model
in_core.permit_amx()

PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class WorkerExtension:
    """Mixed into vLLM's worker, whose attributes and methods it uses."""

    model_runner: Any
    reload_weights: Any

    def replace_weights(self, **source: Any) -> None:
        """Complete vLLM's own `reload_weights`, with the same arguments."""
        layers = list(self.model_runner.get_model().modules())
        for layer in layers:
            if isinstance(layer, RoutedExperts):
                pack_again(layer)
        self.reload_weights(**source)
        for layer in layers:
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)

    def read_weights(self) -> dict[str, torch.Tensor]:
        """Every weight and bias by its published name; fused layers are split into their parts.

        Of tied layers the first, unless they differ. With tensor parallelism this worker's shards.
        """
        model: nn.Module = self.model_runner.get_model()
        found: dict[str, torch.Tensor] = {}
        for full_name, layer in model.named_modules():
            name = full_name.removesuffix(".base_layer")  # below a layer with an adapter
            if isinstance(layer, RoutedExperts):
                read_experts(name, layer, found)
            elif isinstance(layer, LinearBase):
                _read_linear(name, layer, found)
            elif isinstance(layer, ParallelLMHead):
                rows = layer.org_vocab_size
                found[f"{name}.weight"] = _answer(layer, layer.embedding_dim, layer.weight.dtype)[:rows]
            else:
                rows = getattr(layer, "org_vocab_size", None)  # vLLM pads embeddings
                for leaf, parameter in layer.named_parameters(recurse=False):
                    found[f"{name}.{leaf}"] = parameter.detach()[:rows]
        for name, layer in model.named_modules():
            if isinstance(layer, BaseLinearLayerWithLoRA):
                _add_adapter(name, layer, found)
        embeddings = next(tensor for name, tensor in found.items() if "embed_tokens" in name)
        head = found.get("lm_head.weight")
        if head is not None and head.equal(embeddings):
            del found["lm_head.weight"]
        return found

    def save_weights(self, path: str) -> None:
        """Write the result of `read_weights` to a safetensors file, for another process."""
        save_file({name: tensor.contiguous().clone() for name, tensor in self.read_weights().items()}, path)


def _read_linear(name: str, layer: LinearBase, found: dict[str, torch.Tensor]) -> None:
    prefix, parts = _parts(name)
    sizes = getattr(layer, "output_sizes", None) or [layer.output_size]
    weight = _answer(layer, layer.input_size, layer.params_dtype)
    for part, rows in zip(parts, weight.split(sizes), strict=True):
        found[f"{prefix}.{part}.weight"] = rows
    if layer.bias is not None:
        for part, rows in zip(parts, layer.bias.detach().split(sizes), strict=True):
            found[f"{prefix}.{part}.bias"] = rows


def _add_adapter(name: str, layer: BaseLinearLayerWithLoRA, found: dict[str, torch.Tensor]) -> None:
    prefix, parts = _parts(name)
    for part, a, b in zip(parts, layer.lora_a_stacked, layer.lora_b_stacked, strict=True):
        weight = found[f"{prefix}.{part}.weight"]  # B has the scale in it
        merged = torch.addmm(weight.float(), b[0, 0].float(), a[0, 0].float())
        found[f"{prefix}.{part}.weight"] = merged.to(weight.dtype)


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """The prefix of a layer's name, and the names of the layers that vLLM has fused into it."""
    prefix, _, leaf = name.rpartition(".")
    return prefix, PARTS.get(leaf, (leaf,))


def _answer(layer: Any, width: int, dtype: torch.dtype) -> torch.Tensor:
    """The weight [out, in] as the layer multiplies with it."""
    unit = torch.eye(width, dtype=dtype, device=next(layer.parameters()).device)
    return layer.quant_method.apply(layer, unit, None).T.contiguous()
