"""Reads back the experts of a mixture out of vLLM's fused layers, one by one.

Invariant: the result is what the kernel multiplies with. vLLM's CPU kernels keep experts in an order of their
own; that order is found by packing the number of each place in the same way, digit by digit.
"""

import torch
from vllm import _custom_ops as operations
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

DIGIT = 128  # every whole number up to it is exact in bfloat16


def read_experts(name: str, layer: RoutedExperts, found: dict[str, torch.Tensor]) -> None:
    """Add each expert's three matrices to `found`, by their published names."""
    isa = getattr(layer.quant_method.experts_cls, "isa", None)  # of kernels for a CPU
    joined_EIH, down_EHI = (
        weight.detach() if isa is None else _unpacked(weight.detach(), isa)
        for weight in (layer.w13_weight, layer.w2_weight)
    )
    width = layer.moe_config.intermediate_size_per_partition  # the kernel's is padded
    padded = joined_EIH.shape[1] // 2
    prefix = name.removesuffix(".routed_experts")
    for expert in range(len(joined_EIH)):
        gate, up = joined_EIH[expert, :width], joined_EIH[expert, padded : padded + width]
        parts = (layer.ckpt_gate_proj_name, gate), (layer.ckpt_up_proj_name, up)
        for leaf, weight in (*parts, (layer.ckpt_down_proj_name, down_EHI[expert, :, :width])):
            found[f"{prefix}.{expert}.{leaf}.weight"] = weight.contiguous()


def pack_again(layer: RoutedExperts) -> None:
    """Have the next reload pack the experts, as the first load did.

    vLLM 0.32 packs them only when it makes its kernel: its reload would fill packed places with plain rows.
    """
    if getattr(layer.quant_method.experts_cls, "isa", None) is not None:
        layer.quant_method.moe_kernel = None


def _unpacked(packed_ERC: torch.Tensor, isa: str) -> torch.Tensor:
    """The weights of all experts in plain order; every expert is packed in the same way."""
    _, rows, columns = packed_ERC.shape
    places = torch.arange(rows * columns)
    order, weight = torch.zeros_like(places), 1
    while weight < len(places):
        digits = (places // weight % DIGIT).to(packed_ERC.dtype).view(1, rows, columns)
        order += operations.cpu_prepack_moe_weight(digits, isa).flatten().long() * weight
        weight *= DIGIT
    plain = torch.empty_like(packed_ERC).flatten(1)
    plain[:, order] = packed_ERC.flatten(1)
    return plain.view_as(packed_ERC)
