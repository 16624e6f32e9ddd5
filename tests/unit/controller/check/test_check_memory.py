"""What `check` says of memory: every part that grows with the model, against what the machine has."""

import os

import pytest

from controller.check import memory
from controller.check.memory import memory_findings, memory_of
from controller.config.models import Config

SEVEN_B = {"model.w": (7_000_000, 1000)}
SHAPE = {
    "vocab_size": 152_000, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3584,
}  # fmt: skip
GB = 10**9


def config(trainer=None, **sections):
    return Config.model_validate({"trainer": trainer or {}, **sections})


def machine(monkeypatch, *, gpus=(), host=64 * GB):
    monkeypatch.setattr(memory, "gpu_bytes", lambda: list(gpus))
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else host)


def text_of(field, settings, weights=SEVEN_B, level="note"):
    found = {(kind, where): text for kind, where, text in memory_findings(settings, SHAPE, weights)}
    return found[level, field]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("when", ["auto", "every_microbatch", "every_step"])
def test_ranks_share_everything_unless_gradients_cross_at_the_end_of_a_step(ranks, when):
    rank = memory_of(config({"ranks": ranks, "reduce_gradients": when}), SHAPE, SEVEN_B).rank
    if when == "every_step":
        assert rank["gradient, whole on each rank"] == 28 * GB
    else:
        assert rank["gradient"] == 28 * GB // ranks
    assert rank["weights"] == 28 * GB // ranks
    assert rank["AdamW's moments"] == 56 * GB // ranks


def test_a_small_gradient_is_whole_on_each_rank():
    rank = memory_of(config({"ranks": 4}), SHAPE, {"w": (1000, 1000)}).rank
    assert rank["gradient, whole on each rank"] == 4_000_000


def test_one_rank_holds_all_of_everything():
    rank = memory_of(config(), SHAPE, SEVEN_B).rank
    assert (rank["gradient"], rank["weights"], rank["AdamW's moments"]) == (28 * GB, 28 * GB, 56 * GB)


def test_each_rank_copies_its_share_for_a_checkpoint():
    settings = config({"ranks": 8}, model={"dtype": "bfloat16"})
    assert memory_of(settings, SHAPE, SEVEN_B).checkpoint == 84 * GB // 8


def test_logits_take_a_few_copies_of_one_chunk_at_most():
    name, settings = (
        "logits of a micro-batch with what is made of them",
        config(
            {"forward_dtype": "bfloat16"},
            model={"dtype": "bfloat16"},
            rollout={"max_response_tokens": 32_768},
        ),
    )
    assert memory_of(settings, SHAPE, SEVEN_B).rank[name] == 5 * 4 * (1 << 24)
    small = config({"max_tokens_per_microbatch": 100}, rollout={"max_response_tokens": 90})
    assert memory_of(small, {**SHAPE, "vocab_size": 1000}, SEVEN_B).rank[name] == 5 * 4 * 100 * 1000


@pytest.mark.parametrize("key", [*SHAPE])
def test_a_size_that_is_null_counts_as_one_that_is_not_told(key):
    told = {name: size for name, size in SHAPE.items() if name != key}
    assert memory_of(config({}), {**SHAPE, key: None}, SEVEN_B) == memory_of(config({}), told, SEVEN_B)


def test_layers_in_passing_are_the_largest_with_its_gradient_twice_on_a_gpu_and_what_is_in_no_layer():
    sizes = {"model.layers.0.a": (10,), "model.layers.1.a": (20,), "model.layers.1.b": (5, 2), "embed": (7,)}

    def passing(dtype, **options):
        settings = config({"forward_dtype": dtype} | options, model={"dtype": "bfloat16"})
        return memory_of(settings, SHAPE, sizes).rank["layers in passing"]

    assert passing("bfloat16", device="cuda") == 7 * 2 + 30 * 2 * (2 + 4)
    assert passing("float32", device="cuda") == 7 * 4 + 30 * 16
    assert passing("bfloat16", device="cpu") == 7 * 6 + 30 * 6
    assert passing("float32", device="cpu", ranks=2) == 7 * 8 + 30 * 8 + 30 * 4, "as it arrived"
    assert passing("bfloat16", device="cpu", ranks=4) == 7 * 6 + 30 * 6 + 30 * 2


def test_an_adapter_has_moments_and_gradient_of_its_own_size_only():
    weights = {"model.layers.0.q_proj.weight": (1000, 1000)}
    rank = memory_of(config({"lora": {"rank": 8}}), SHAPE, weights).rank
    assert rank["AdamW's moments"] == 8 * 8 * 2000
    assert rank["frozen weights"] == 4_000_000


def test_a_trainer_that_no_gpu_holds_is_named_with_the_part_that_ranks_do_not_divide(monkeypatch):
    machine(monkeypatch, gpus=[80 * GB] * 8)
    settings = config({"ranks": 8, "device": "cuda"}, rollout={"device": "cuda"})
    assert "more than" not in text_of("trainer.ranks", settings)
    large = {f"model.layers.{number}.w": (500_000, 1000) for number in range(64)}
    assert "more than" not in text_of("trainer.ranks", settings, large)
    whole = config(
        {"ranks": 8, "device": "cuda", "reduce_gradients": "every_step"}, rollout={"device": "cuda"}
    )
    words = text_of("trainer.ranks", whole, large, level="error")
    assert "128.0 GB gradient, whole on each rank" in words
    assert "more than the 80.0 GB that a GPU of this machine has" in words
    assert "Set trainer.reduce_gradients: every_microbatch" in words


def test_a_checkpoint_that_host_memory_cannot_hold_is_named(monkeypatch):
    machine(monkeypatch, gpus=[80 * GB] * 8, host=64 * GB)
    settings = config({"ranks": 8, "device": "cuda"}, rollout={"device": "cuda"})
    assert "84.0 GB of weights and moments" in text_of("trainer.checkpoint_steps", settings)


def test_what_a_machine_without_gpus_cannot_hold_is_an_error(monkeypatch):
    machine(monkeypatch, host=64 * GB)
    words = text_of("rollout.max_running", config(), level="error")
    assert "This machine has 64.0 GB" in words


def test_a_trainer_that_attaches_from_elsewhere_does_not_count_here(monkeypatch):
    machine(monkeypatch, host=64 * GB)
    settings = config({"local": False}, rollout={"instances": 0}, controller={"bind": "tcp://127.0.0.1:5555"})
    assert "0 instances" in text_of("rollout.max_running", settings)
    assert "more than" not in text_of("trainer.ranks", settings)


@pytest.mark.parametrize(
    "more",
    [
        {"layer_types": ["linear_attention", "linear_attention", "conv", "full_attention"] * 7},
        {"full_attention_interval": 4},
        {"layer_types": ["linear_attention"] * 27 + ["hybrid"], "num_key_value_heads": 28},
    ],
)
def test_layers_with_a_state_keep_no_keys_and_values(more):
    whole, found = (
        memory_of(config(), shape, SEVEN_B).instance["KV cache"] for shape in (SHAPE, SHAPE | more)
    )
    assert found == whole // 4
