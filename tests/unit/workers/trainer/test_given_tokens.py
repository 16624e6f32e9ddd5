"""Runs of given tokens in what the trainer trains: context, and nothing else."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.errors import RemoteError
from protocol.messages import GIVEN, Segment, Train, TrainItem
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.trainer.batch import read_batch
from workers.trainer.packed_forward import pack_row
from workers.trainer.token_batch import count_episodes
from workers.trainer.trainer import Trainer

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "initializer_range": 0.2,
}  # fmt: skip
RUNS = (("given", 3), ("sampled", 4), ("given", 2), ("sampled", 1), ("given", 5), ("sampled", 6))


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)).save_pretrained(directory)
    return directory


def settings(tmp_path, **trainer):
    return WorkerSettings(
        run_dir=str(tmp_path), seed=0, steps=10, model=ModelSettings(), rollout=RolloutSettings(),
        reward=RewardSettings(),
        trainer=TrainerSettings(
            device="cpu", **({"lr": 1e-2, "max_tokens_per_microbatch": 64, "grad_clip": 1e9} | trainer)
        ),
    )  # fmt: skip


def agent_batch(*, seed=0, groups=2, size=3, outcomes=(), version=0):
    """Episodes of three turns, and the frames that the controller sends of them."""
    rng = np.random.default_rng(seed)
    items, tokens, logprobs = [], [], []
    for group in range(groups):
        for episode in range(size):
            segments = tuple(
                Segment(number, GIVEN if kind == "given" else version, count)
                for number, (kind, count) in enumerate(RUNS)
            )
            value = float(rng.normal())
            items.append(
                TrainItem(group, episode, 0, 0.0, value, "stop", segments, episode=episode, outcomes=outcomes)
            )
            tokens.append(rng.integers(0, 16, sum(count for _, count in RUNS)).astype("<i4"))
            logprobs.append(np.full(11, -2.8, dtype="<f4"))
    frames = (b"", np.concatenate(tokens).tobytes(), np.concatenate(logprobs).tobytes())
    return Train(version, tuple(items)), frames


def as_single_turn(train, frames):
    """The same tokens as prompts and responses: what was given first is the prompt, the rest is sampled."""
    tokens = np.split(np.frombuffer(frames[1], dtype="<i4"), len(train.items))
    items = tuple(
        item._replace(prompt_tokens=3, segments=(Segment(0, train.train_version, 18),))
        for item in train.items
    )
    return Train(train.train_version, items), (
        np.concatenate([row[:3] for row in tokens]).tobytes(),
        np.concatenate([row[3:] for row in tokens]).tobytes(),
        np.full(18 * len(tokens), -2.8, dtype="<f4").tobytes(),
    )


def test_only_sampled_tokens_are_predicted_and_all_before_them_are_their_context():
    train, frames = agent_batch(groups=1, size=2)
    batch = read_batch(train, frames)
    row = pack_row(batch, [0, 1], CPU)
    sampled = [3, 4, 5, 6, 9, 15, 16, 17, 18, 19, 20]
    assert [positions.tolist() for positions in batch.positions] == [sampled, sampled]
    assert row.predicting_N.tolist() == [place - 1 for place in sampled] + [20 + place for place in sampled]
    whole = np.concatenate(batch.tokens)
    assert row.targets_N.tolist() == [whole[place] for place in (*sampled, *(21 + p for p in sampled))]
    assert row.places_N.tolist() == [*range(22)]
    assert row.lengths == [21, 21]
    assert len(batch.policy_versions) == len(batch.rollout_logprobs) == len(batch.advantages) == 22


def gradients(model_directory, settings, train, frames):
    """Before the optimizer step takes them away."""
    trainer, kept = Trainer(settings, model_directory), {}
    step = trainer._optimizer.step

    def keep():
        kept.update(
            {name: weight.grad.full_tensor().clone() for name, weight in trainer.model.named_parameters()}
        )
        step()

    trainer._optimizer.step = keep
    trainer.train_step(train, frames)
    return kept


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "group_mean", "sequence_sum"])
def test_the_gradient_is_that_of_a_loss_with_the_given_tokens_masked(model_directory, tmp_path, aggregation):
    """Masked by hand: single-turn items of the same tokens, whose given positions weigh nothing."""
    options = settings(tmp_path, loss_aggregation=aggregation, loss=f"{__file__}:masked_loss")
    plain = settings(tmp_path, loss_aggregation=aggregation, loss=f"{__file__}:unmasked_loss")
    train, frames = agent_batch()
    ours = gradients(model_directory, plain, train, frames)
    theirs = gradients(model_directory, options, *as_single_turn(train, frames))
    share = {"token_mean": 18 / 11, "sequence_mean": 18 / 11, "group_mean": 18 / 11, "sequence_sum": 1.0}
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name] * share[aggregation], rtol=1e-4, atol=1e-7), name


def unmasked_loss(tokens):
    return -tokens.advantages * tokens.logprobs


def masked_loss(tokens):
    mask = torch.tensor([1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], dtype=torch.float32)
    count = len(tokens.advantages)  # whole responses of 18 tokens, or a few made-up tokens before the run
    return -tokens.advantages * tokens.logprobs * mask.repeat(count // 18 + 1)[:count]


def test_noise_in_logprobs_of_given_tokens_cannot_reach_the_gradient(model_directory, tmp_path):
    """They are not even in the frames: a message that brings some is refused."""
    train, frames = agent_batch()
    noise = np.random.default_rng(1).normal(size=21 * len(train.items)).astype("<f4").tobytes()
    with pytest.raises(RemoteError, match="expected items"):
        read_batch(train, (*frames[:2], noise))
    first = gradients(model_directory, settings(tmp_path), train, frames)
    again = gradients(model_directory, settings(tmp_path), train, frames)
    assert all(torch.equal(gradient, again[name]) for name, gradient in first.items())


def test_what_was_given_changes_the_gradient_as_context(model_directory, tmp_path):
    train, frames = agent_batch()
    other = np.frombuffer(frames[1], dtype="<i4").copy()
    other[7] = (other[7] + 1) % 16  # the first given token behind the first turn
    changed = gradients(model_directory, settings(tmp_path), train, (b"", other.tobytes(), frames[2]))
    first = gradients(model_directory, settings(tmp_path), train, frames)
    assert any(not torch.equal(gradient, changed[name]) for name, gradient in first.items())


def test_every_turn_may_have_an_advantage_of_its_own():
    train, frames = agent_batch(groups=1, size=1, outcomes=(0.0, 1.5, 0.0, -2.0, 0.0, 0.25))
    assert read_batch(train, frames).advantages.tolist() == [1.5] * 4 + [-2.0] + [0.25] * 6
    train, frames = agent_batch(groups=1, size=2)
    mixed = (train.items[0], train.items[1]._replace(outcomes=(0.0, 1.0, 0.0, 2.0, 0.0, 3.0)))
    advantages = read_batch(Train(0, mixed), frames).advantages
    assert advantages[:11].tolist() == pytest.approx([train.items[0].outcome] * 11)
    assert advantages[11:].tolist() == [1.0] * 4 + [2.0] + [3.0] * 6


def test_a_step_says_in_how_many_groups_the_advantages_of_all_turns_are_equal(model_directory, tmp_path):
    (plain, frames), (train, _) = agent_batch(groups=3), agent_batch(groups=3, outcomes=(0.0,) * 6)
    trainer = Trainer(settings(tmp_path), model_directory)
    assert "groups/equal_advantages" not in trainer.train_step(plain, frames), "turns have none of their own"
    # one turn of one episode is better: what the rewards of the episodes are does not matter
    items = tuple(
        item._replace(outcomes=(0.0, 0.0, 0.0, 0.5, 0.0, 1e-9)) if place == 4 else item
        for place, item in enumerate(train.items)
    )
    told = trainer.train_step(Train(1, items), frames)
    assert told["groups/equal_advantages"] == pytest.approx(2 / 3)
    alone, frames = agent_batch(groups=2, size=1, outcomes=(0.0,) * 6, version=2)
    assert "groups/equal_advantages" not in trainer.train_step(alone, frames), "nothing is compared"


def test_an_episode_of_several_trajectories_weighs_as_one(model_directory, tmp_path):
    train, frames = agent_batch(groups=1, size=3)
    forked = tuple(item._replace(episode=min(item.member, 1)) for item in train.items)
    batch = read_batch(Train(0, forked), frames)
    counted = count_episodes(batch, range(3))
    assert counted.lengths_E.tolist() == [11, 22]
    assert counted.groups_E.tolist() == [0, 0]
    assert counted.episodes_B.tolist() == [0, 1, 1]


def test_a_trajectory_with_neither_prompt_nor_given_run_is_refused():
    train, frames = agent_batch(groups=1, size=1)
    naked = train.items[0]._replace(segments=(Segment(0, 0, 21),))
    logprobs = np.zeros(21, dtype="<f4").tobytes()
    with pytest.raises(RemoteError, match="each with a prompt"):
        read_batch(Train(0, (naked,)), (b"", frames[1], logprobs))
