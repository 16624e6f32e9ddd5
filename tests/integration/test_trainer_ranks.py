"""Trainer ranks as real processes: two of them do what one does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.messages import SaveCheckpoint, Segment, Train, TrainItem
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
    load_settings,
)
from workers.trainer import Trainer, follow

STEPS = 3


def make_batch(train_version):
    rng = np.random.default_rng(train_version)
    items = []
    # one long response: at two ranks and this budget, a rank runs out of sequences before the other
    for index, response in enumerate([90, *rng.integers(1, 12, 7).tolist()]):
        segments = (Segment(0, train_version, response),)
        items.append(TrainItem(index // 2, index % 2, 3, 0.0, float(rng.normal()), "stop", segments))
    count = sum(item.response_tokens for item in items)
    tokens = rng.integers(0, 16, 24 + count).astype("<i4")
    logprobs = rng.normal(-2.8, 0.5, count).astype("<f4")
    return Train(train_version, tuple(items)), (
        tokens[:24].tobytes(),
        tokens[24:].tobytes(),
        logprobs.tobytes(),
    )


def lead(settings, model_directory):
    """Be rank 0 as TrainerWorker is, without a link."""
    trainer = Trainer(settings, model_directory)
    trainer.state_for_publish()
    metrics = []
    for version in range(STEPS):
        train, frames = make_batch(version)
        trainer.ranks.broadcast(train, frames)
        metrics.append(trainer.train_step(train, frames))
        trainer.state_for_publish()
    trainer.ranks.broadcast(SaveCheckpoint(STEPS))
    trainer.save_checkpoint(STEPS)
    trainer.ranks.stop()
    return metrics


def run_ranks(settings_file, model_directory, scenario):
    """Two ranks, forked from one process after its imports, which take most of the time of a rank's life."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, __file__, str(settings_file), str(model_directory), scenario],
        env=os.environ | place | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.fixture
def prepared(tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")

    def prepare(name):
        settings = WorkerSettings(
            run_dir=str(tmp_path / name),
            seed=0,
            steps=STEPS,
            model=ModelSettings(),
            rollout=RolloutSettings(),
            reward=RewardSettings(),
            trainer=TrainerSettings(
                lr=1e-2, minibatches=2, max_tokens_per_microbatch=24, weight_decay=0.1, device="cpu"
            ),
        )
        file = tmp_path / f"{name}.json"
        file.write_text(settings.model_dump_json())
        return settings, file, tmp_path / "model"

    return prepare


def test_two_ranks_train_publish_and_save_as_one_does(prepared, tmp_path):
    settings, _, model_directory = prepared("one")
    expected = lead(settings, str(model_directory))
    _, file, _ = prepared("two")
    ended = run_ranks(file, model_directory, "train")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-4)
    one, two = (
        load_file(tmp_path / name / "checkpoints/step_3/trainer/state.safetensors") for name in ("one", "two")
    )
    assert one.keys() == two.keys()
    assert all(
        torch.allclose(one[name].float(), two[name].float(), atol=1e-4) for name in one if name != "rng"
    )


def test_a_rank_that_loses_rank_0_ends_and_says_so(prepared):
    _, file, model_directory = prepared("lost")
    ended = run_ranks(file, model_directory, "lose rank 0")
    assert ended.returncode == 1
    assert "RunError: The trainer failed" in ended.stderr


def main():
    settings, model_directory, scenario = load_settings(Path(sys.argv[1]).read_text()), *sys.argv[2:]
    child = os.fork()
    is_leader = (child != 0) == (scenario == "train")
    os.environ["RANK"] = "0" if is_leader else "1"
    if not is_leader:
        follow(settings, model_directory)
    elif scenario == "train":
        print(json.dumps(lead(settings, model_directory)))
    else:
        Trainer(settings, model_directory)
        os._exit(0)
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
