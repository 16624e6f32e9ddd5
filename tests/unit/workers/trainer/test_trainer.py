"""The trainer without a network: packed passes, steps, skipped steps, checkpoints."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from protocol.errors import ConfigError, RemoteError, RunError
from protocol.messages import Segment, Train, TrainItem
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from tests.support.published_state import state_of
from workers.models.model import load_causal_lm
from workers.trainer.batch import read_batch
from workers.trainer.packed_forward import PACKED_SDPA, forward_row, pack_row
from workers.trainer.sequence.no_leak import check_no_leak
from workers.trainer.worker import Trainer, make_trainer

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)).save_pretrained(directory)
    return directory


@pytest.fixture
def settings(tmp_path):
    def make(temperature=1.0, dtype="float32", **trainer):
        return WorkerSettings(
            run_dir=str(tmp_path),
            seed=0,
            steps=1,
            model=ModelSettings(dtype=dtype),
            rollout=RolloutSettings(sampling=SamplingSettings(temperature=temperature)),
            reward=RewardSettings(),
            trainer=TrainerSettings(
                device="cpu", **({"lr": 1e-2, "max_tokens_per_microbatch": 64} | trainer)
            ),
        )

    return make


def make_batch(*, seed=0, groups=4, size=4, train_version=0, logprob=-2.8, advantage=None):
    rng = np.random.default_rng(seed)
    items, frames = [], ([], [], [])
    for group in range(groups):
        for member in range(size):
            prompt, response = int(rng.integers(1, 6)), int(rng.integers(1, 30))
            tokens = rng.integers(0, 16, prompt + response)
            value = float(rng.normal()) if advantage is None else advantage(tokens[prompt:])
            segments = (Segment(0, train_version, response),)
            items.append(TrainItem(group, member, prompt, 0.0, value, "stop", segments))
            frames[0].append(tokens[:prompt].astype("<i4"))
            frames[1].append(tokens[prompt:].astype("<i4"))
            frames[2].append(np.full(response, logprob, dtype="<f4"))
    joined = tuple(np.concatenate(parts).tobytes() for parts in frames)
    return Train(train_version, tuple(items)), joined


def on_policy(trainer, **options):
    """A batch whose rollout logprobs are those of the trainer's own weights."""
    train, frames = make_batch(**options)
    batch = read_batch(train, frames)
    logprobs, _ = trainer._own_pass(trainer._rows(batch, range(len(batch.tokens))), len(batch.advantages))
    return train, (*frames[:2], logprobs.numpy().astype("<f4").tobytes())


def padded_logprobs(model, batch):
    """Logprobs of all response tokens out of one padded batch."""
    longest = max(batch.lengths)
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch.tokens])
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in batch.lengths])
    logprobs = model(input_ids=tokens, attention_mask=mask).logits.log_softmax(-1)
    chosen = logprobs[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    pairs = zip(batch.prompt_lengths, batch.lengths, strict=True)
    return torch.cat([chosen[row, p - 1 : n - 1] for row, (p, n) in enumerate(pairs)])


def test_a_packed_row_has_the_logprobs_loss_and_gradients_of_a_padded_batch(model_directory, settings):
    trainer = Trainer(settings(grad_clip=1e9, lr=1e-30), str(model_directory))
    train, frames = make_batch()
    batch = read_batch(train, frames)
    padded = AutoModelForCausalLM.from_pretrained(model_directory)
    logprobs = padded_logprobs(padded, batch)
    rows = trainer._rows(batch, range(len(batch.tokens)))
    assert len(rows) > 1
    packed, _ = trainer._own_pass(rows, len(logprobs))
    assert (packed - logprobs).abs().max() < 1e-5
    weights = (logprobs.detach() - torch.from_numpy(batch.rollout_logprobs)).exp().clamp(max=2.0)
    ratio = (logprobs - logprobs.detach()).exp()
    loss = -(weights * ratio * torch.from_numpy(batch.advantages)).mean()
    loss.backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in padded.parameters()))
    gradients = {}
    trainer._optimizer.register_step_pre_hook(
        lambda *_: gradients.update({n: p.grad.full_tensor() for n, p in trainer.model.named_parameters()})
    )
    metrics = trainer.train_step(train, frames)
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, parameter in padded.named_parameters():
        assert (gradients[name] - parameter.grad).abs().max() < 1e-5, name


def test_sequences_of_a_row_see_nothing_of_each_other(model_directory):
    model = load_causal_lm(model_directory, dtype="float32", device=CPU, attention=PACKED_SDPA)
    batch = read_batch(*make_batch(groups=1))
    first = forward_row(model, pack_row(batch, [0, 1, 2], CPU))
    batch.tokens[0][:] = (batch.tokens[0] + 1) % 16
    second = forward_row(model, pack_row(batch, [0, 1, 2], CPU))
    own = batch.response_lengths[0]
    assert torch.equal(first[own:], second[own:])
    assert not torch.allclose(first[:own], second[:own])


def test_sliding_windows_are_kept_in_packed_rows(tmp_path):
    MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)).save_pretrained(tmp_path)
    batch = read_batch(*make_batch())
    packed = load_causal_lm(tmp_path, dtype="float32", device=CPU, attention=PACKED_SDPA)
    alone = load_causal_lm(tmp_path, dtype="float32", device=CPU, attention="eager")
    logits = forward_row(packed, pack_row(batch, [0, 1, 2], CPU))
    start = batch.prompt_lengths[0] - 1
    expected = alone(input_ids=torch.from_numpy(batch.tokens[0])[None]).logits[0, start:-1]
    assert len(batch.tokens[0]) > 8
    assert (logits[: len(expected)] - expected).abs().max() < 1e-5


def test_a_model_that_mixes_packed_sequences_is_refused(model_directory):
    model = load_causal_lm(model_directory, dtype="float32", device=CPU, attention=PACKED_SDPA)
    inner = model.model.layers[0].forward

    def mixing(hidden_states, *arguments, **options):
        return inner(hidden_states.flip(1).cumsum(1).flip(1), *arguments, **options)  # of later tokens

    model.model.layers[0].forward = mixing
    with pytest.raises(ConfigError, match="mixes sequences"):
        check_no_leak(model, CPU)


@pytest.mark.parametrize("proximal", ["recompute", "rollout"])
def test_training_raises_the_probability_of_rewarded_tokens(model_directory, settings, proximal):
    trainer = Trainer(settings(minibatches=2, proximal=proximal), str(model_directory))

    def favour_three(response):
        return float((response == 3).mean() * 16 - 1)

    probabilities = []
    for version in range(6):
        train, frames = on_policy(trainer, seed=version, train_version=version, advantage=favour_three)
        tokens, logprobs = (
            np.frombuffer(frame, dtype=t) for frame, t in zip(frames[1:], ("<i4", "<f4"), strict=True)
        )
        probabilities.append(np.exp(logprobs[tokens == 3]).mean())
        metrics = trainer.train_step(train, frames)
        assert metrics["skipped_steps"] == 0
        assert metrics["tokens"] == len(tokens)
        assert all(math.isfinite(value) for value in metrics.values())
    assert probabilities[-1] > 1.5 * probabilities[0]


def test_an_on_policy_step_has_no_mismatch_and_an_off_policy_one_is_weighted(model_directory, settings):
    trainer = Trainer(settings(), str(model_directory))
    train, frames = on_policy(trainer)
    metrics = trainer.train_step(train, frames)
    assert metrics["mismatch_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["importance_weight/mean"] == pytest.approx(1, abs=1e-6)
    assert metrics["clip_ratio"] == 0
    assert 0 < metrics["entropy"] < math.log(16)
    metrics = trainer.train_step(*make_batch(train_version=1, logprob=-9.0))
    assert metrics["importance_weight/mean"] == pytest.approx(2, abs=1e-2)  # capped: no filter is configured
    assert metrics["mismatch_kl"] > 1


def test_the_learning_rate_warms_up_linearly(model_directory, settings):
    trainer = Trainer(settings(warmup_steps=2), str(model_directory))
    rates = [trainer.train_step(*make_batch(train_version=v))["lr"] for v in range(3)]
    assert rates == pytest.approx([5e-3, 1e-2, 1e-2])


def test_logprobs_are_those_of_the_sampling_temperature(model_directory, settings):
    hot = Trainer(settings(temperature=2.0), str(model_directory))
    batch = read_batch(*make_batch(groups=1))
    packed, _ = hot._own_pass(hot._rows(batch, range(4)), len(batch.advantages))
    logits = AutoModelForCausalLM.from_pretrained(model_directory)(
        torch.from_numpy(batch.tokens[0])[None]
    ).logits
    expected = (logits[0] / 2).log_softmax(-1)
    prompt = batch.prompt_lengths[0]
    assert packed[0].item() == pytest.approx(expected[prompt - 1, batch.tokens[0][prompt]].item(), abs=1e-5)
    with pytest.raises(ConfigError, match="temperature` is 0"):
        Trainer(settings(temperature=0.0), str(model_directory))


def test_a_step_that_is_not_finite_is_skipped_and_counted_and_a_finite_one_forgives(
    model_directory, settings, tmp_path
):
    trainer = Trainer(settings(), str(model_directory))
    before = state_of(trainer)
    for version in range(2):
        metrics = trainer.train_step(*make_batch(train_version=version, advantage=lambda _: math.inf))
        assert metrics["skipped_steps"] == 1
        assert all(math.isfinite(value) for value in metrics.values())
    after = state_of(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.train_step(*make_batch(train_version=2))["skipped_steps"] == 0
    for version in (3, 4):
        trainer.train_step(*make_batch(train_version=version, advantage=lambda _: math.inf))
    assert not (tmp_path / "not_finite").exists()


def test_three_steps_in_a_row_that_are_not_finite_end_the_run_with_the_batch_written_out(
    model_directory, settings, tmp_path
):
    trainer = Trainer(settings(minibatches=2), str(model_directory))
    trainer.train_step(*make_batch(train_version=0, advantage=lambda _: math.inf))
    train, frames = make_batch(train_version=1, advantage=lambda _: math.inf)
    with pytest.raises(RunError, match="3 optimizer steps in a row") as caught:
        trainer.train_step(train, frames)
    directory = tmp_path / "not_finite" / "version_1"
    assert str(directory) in str(caught.value)
    with np.load(directory / "batch.npz") as file:
        arrays = dict(file)
    assert arrays["tokens"].tolist() == np.concatenate(read_batch(train, frames).tokens).tolist()
    assert not np.isfinite(arrays["advantages"]).any()
    seen = json.loads((directory / "seen.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    assert seen["skipped_steps"][0]["loss"] in ("inf", "-inf", "nan")
    assert [(step["train_version"], step["minibatch"]) for step in seen["skipped_steps"]] == [
        (0, 0), (0, 1), (1, 0),
    ]  # fmt: skip
    assert seen["not_finite"]["advantages"] == len(arrays["advantages"])
    assert [item["group"] for item in seen["trajectories"]] == [item.group for item in train.items]


def test_a_batch_of_another_version_or_size_is_refused(model_directory, settings):
    trainer = Trainer(settings(), str(model_directory))
    with pytest.raises(RemoteError, match="version 1 came to a trainer at 0"):
        trainer.train_step(*make_batch(train_version=1))
    train, frames = make_batch()
    with pytest.raises(RemoteError, match="expected items"):
        trainer.train_step(train, (*frames[:2], frames[2][:-4]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_published_weights_are_private_copies_of_the_asked_precision_and_tied_ones_come_once(
    model_directory, settings, dtype
):
    trainer = Trainer(settings(dtype=dtype), str(model_directory))
    state = state_of(trainer)
    assert "lm_head.weight" not in state
    assert {tensor.dtype for tensor in state.values()} == {getattr(torch, dtype)}
    copies = {name: tensor.clone() for name, tensor in state.items()}
    trainer.train_step(*make_batch())
    assert all(torch.equal(state[name], copies[name]) for name in state)
    assert not torch.equal(state_of(trainer)["model.norm.weight"], state["model.norm.weight"])


def test_a_resumed_trainer_goes_on_as_if_nothing_had_happened(model_directory, settings, tmp_path):
    straight = Trainer(settings(), str(model_directory))
    for version in range(2):
        straight.train_step(*make_batch(seed=version, train_version=version))
    path = straight.save_checkpoint(2)
    expected = [straight.train_step(*make_batch(seed=v, train_version=v)) for v in (2, 3)]
    resumed = Trainer(settings(), str(model_directory))
    resumed.load_checkpoint(path)
    assert [resumed.train_step(*make_batch(seed=v, train_version=v)) for v in (2, 3)] == expected
    published = state_of(resumed)
    assert all(torch.equal(tensor, published[name]) for name, tensor in state_of(straight).items())


def test_a_checkpoint_is_a_hugging_face_model_and_the_newest_are_kept(model_directory, settings, tmp_path):
    trainer = Trainer(settings(keep_checkpoints=2), str(model_directory))
    for version in range(3):
        assert trainer.save_checkpoint(version) == tmp_path / "checkpoints" / f"step_{version}"
        trainer.train_step(*make_batch(train_version=version))
    trainer.save_checkpoint(3)
    path = trainer.save_checkpoint(3)  # saved again, it is replaced
    assert sorted(p.name for p in path.parent.iterdir() if not p.name.startswith(".")) == ["step_2", "step_3"]
    model = AutoModelForCausalLM.from_pretrained(path)
    state = state_of(trainer)
    assert all(torch.equal(state[name], model.state_dict()[name]) for name in state)
    with pytest.raises(RemoteError, match="checkpoint of version 7"):
        trainer.save_checkpoint(7)
    (path / ".complete").unlink()
    with pytest.raises(RunError, match="not a complete checkpoint"):
        trainer.load_checkpoint(path)


def test_a_trainer_is_made_as_its_newest_complete_checkpoint_left_it(model_directory, settings, tmp_path):
    assert make_trainer(settings(), str(model_directory)).policy_version == 0
    trainer = Trainer(settings(), str(model_directory))
    for version in range(3):
        trainer.train_step(*make_batch(seed=version, train_version=version))
        path = trainer.save_checkpoint(version + 1)
    (path / ".complete").unlink()  # as if it had been cut off
    again = make_trainer(settings(), str(model_directory))
    assert again.policy_version == 2
    again.train_step(*make_batch(seed=2, train_version=2))
    published = state_of(again)
    assert all(torch.equal(tensor, published[name]) for name, tensor in state_of(trainer).items())
