"""Peaks of devices, and operations of a train step, against sums made by hand."""

import pytest

from protocol.trainer.compute import Arithmetic, Passes, peak_flops, train_flops


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA B200", 2250e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 9999", None),
        ("cpu", None),
    ],
)
def test_a_device_has_the_peak_of_its_name_or_none(device, peak):
    assert peak_flops(device, "bfloat16") == peak


def test_a_precision_of_32_bits_has_no_peak():
    assert peak_flops("NVIDIA H200", "float32") is None


def test_a_dense_model_takes_six_per_weight_and_token_and_its_head_only_where_tokens_were_sampled():
    model = Arithmetic(linear=100, trained=100, head=10, trained_head=10, attention=0)
    assert train_flops(model, tokens=7, sampled=3, squares=0) == 6 * 100 * 7 + 6 * 10 * 3


def test_frozen_weights_take_four_and_passes_without_gradient_two():
    model = Arithmetic(linear=100, trained=8, head=0, trained_head=0, attention=0)
    assert train_flops(model, tokens=5, sampled=5, squares=0) == (4 * 100 + 2 * 8) * 5
    more = train_flops(model, tokens=5, sampled=5, squares=0, passes=Passes(1, 2))
    assert more == (4 * 100 + 2 * 8 + 2 * 2 * 100) * 5


def test_attention_grows_with_the_square_of_each_length():
    model = Arithmetic(0, 0, 0, 0, attention=16)
    assert train_flops(model, tokens=8, sampled=8, squares=64) == 3 * 2 * 16 * 64
    assert train_flops(model, tokens=8, sampled=8, squares=32) == 3 * 2 * 16 * 32
