"""Trainer ranks as real processes: any number of them does what one does."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from protocol.messages import SaveCheckpoint, Segment, Train, TrainAhead, TrainItem
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
    load_settings,
)
from tests.support.ports import free_port
from tests.support.prepared_program import start_program
from workers.trainer.checkpoints import newest_checkpoint, read_state
from workers.trainer.publishing.copies import Copies
from workers.trainer.ranks import torch_errors_in_words
from workers.trainer.sharding import SumInPlace
from workers.trainer.worker import Trainer, follow, make_publisher, make_trainer

STEPS, MINIBATCHES, LAYERS = 3, 2, 2
NOTHING_CUT = SamplingSettings()
SAVED = f"checkpoints/step_{STEPS}"


def make_batch(train_version, *, is_cut=False):
    rng = np.random.default_rng(train_version)
    items = []
    # one long response: at two ranks and this budget, a rank runs out of sequences before the other
    for index, response in enumerate([90, *rng.integers(1, 12, 7).tolist()]):
        segments = (Segment(0, train_version, response),)
        items.append(TrainItem(index // 2, index % 2, 3, 0.0, float(rng.normal()), "stop", segments))
    count = sum(item.response_tokens for item in items)
    tokens = rng.integers(0, 16, 24 + count).astype("<i4")
    logprobs = rng.normal(-2.8, 0.5, count).astype("<f4")
    frames = (tokens[:24].tobytes(), tokens[24:].tobytes(), logprobs.tobytes())
    if not is_cut:
        return Train(train_version, tuple(items)), frames
    cut = (tokens[24:] + 1) % 16  # each token was drawn from all but its successor
    words = np.split(cut, np.cumsum([item.response_tokens for item in items])[:-1])
    codes = np.full(count, -1, dtype="<i4")
    added = (codes.tobytes(), *(some.astype("<i4").tobytes() for some in words))
    return Train(train_version, tuple(items), is_cut=True), (*frames, *added)


def in_parts(train, frames):
    """The first group alone, which at two ranks leaves one without work; two together; then the rest."""
    columns = []
    for number, frame in enumerate(frames):
        counts = [item.response_tokens if number else item.prompt_tokens for item in train.items]
        columns.append(np.split(np.frombuffer(frame, "<i4"), np.cumsum(counts)))
    for begin, end in ((0, 2), (2, 6), (6, 8)):
        part = TrainAhead(train.train_version, train.items[begin:end])
        payload = tuple(np.concatenate(column[begin:end]).tobytes() for column in columns)
        yield (part if end < 8 else Train(train.train_version, train.items, ahead=begin)), payload


def lead(settings, model_directory):
    """Be rank 0 as TrainerWorker is, without a link: some more steps, and a checkpoint."""
    trainer = make_trainer(settings, model_directory)
    publisher = make_publisher(settings, trainer)
    copies = Copies(trainer, publisher)
    copying = copies.begin()
    metrics, sent = [], 0
    sum_in_place = SumInPlace.__call__

    def counted(*arguments, **options):
        nonlocal sent
        sent += 1
        return sum_in_place(*arguments, **options)

    SumInPlace.__call__ = counted
    for version in range(trainer.policy_version, trainer.policy_version + settings.steps):
        train, frames = make_batch(version, is_cut=settings.rollout.sampling.min_tokens > 0)
        if settings.trainer.streaming:
            *ahead, (train, frames) = in_parts(train, frames)
            for part, some in ahead:
                trainer.ranks.broadcast(part, some)
                trainer.train_ahead(part, some)
        trainer.ranks.broadcast(train, frames)
        metrics.append(trainer.train_step(train, frames))
        publisher.seal(copying.result().written)
        copying = copies.begin()  # while the next batch is trained on
        publisher.retire(version)
    SumInPlace.__call__ = sum_in_place
    trainer.ranks.broadcast(SaveCheckpoint(trainer.policy_version))
    trainer.save_checkpoint(trainer.policy_version)
    publisher.seal(copying.result().written)
    publisher.close()
    copies.close()
    trainer.ranks.stop()
    return {"metrics": metrics, "sent": sent}


def run_ranks(model_directory, scenario, *stages):
    """Their exit code, output and errors: ranks forked from one process that has imported torch.

    `stages` are (settings file, number of ranks), one after the other in the same processes.
    """
    arguments = [f"{ranks}:{free_port()}:{file}" for file, ranks in stages]
    return asyncio.run(end_of_ranks(str(model_directory), scenario, *arguments))


async def end_of_ranks(*arguments):
    place = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = await start_program(
            "from test_trainer_ranks import main; main()",
            *arguments,
            environment=os.environ | place,
            paths=[Path(__file__).parent],
            errors=errors.fileno(),
        )
        async with asyncio.timeout(300):
            output = (await process.stdout.read()).decode()
            code = await process.wait()
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output, errors.read())


def assert_alike(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5, rel=0)
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-4)


@pytest.fixture
def prepared(tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")

    def prepare(name, steps=STEPS, sampling=NOTHING_CUT, **options):
        settings = WorkerSettings(
            run_dir=str(tmp_path / name),
            seed=0,
            steps=steps,
            model=ModelSettings(),
            rollout=RolloutSettings(sampling=sampling),
            reward=RewardSettings(),
            weights=WeightsSettings(directory=str(tmp_path / f"{name} weights")),
            trainer=TrainerSettings(
                **{"lr": 1e-2, "minibatches": MINIBATCHES, "max_tokens_per_microbatch": 24}
                | {"weight_decay": 0.1, "device": "cpu"}
                | options
            ),
        )
        file = tmp_path / f"{name}.json"
        file.write_text(settings.model_dump_json())
        return settings, file, tmp_path / "model"

    return prepare


def assert_published_is_saved(directory, *names):
    """The version that each made visible, of which every rank wrote its shards, is what it saved."""
    for name in names:
        (published,) = (directory / f"{name} weights").glob(f"*/v{STEPS}.safetensors")
        trained = load_file(directory / name / SAVED / "model.safetensors")
        assert all(torch.equal(tensor, trained[key]) for key, tensor in load_file(published).items())


def assert_equal_files(run, again):
    """Two runs of two ranks saved the same, bit for bit, random numbers included."""
    for file in ("model.safetensors", *(f"trainer/state-0000{rank}-of-00002.safetensors" for rank in (1, 2))):
        saved, other = load_file(run / SAVED / file), load_file(again / SAVED / file)
        assert saved.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in saved.items())


def test_one_two_and_four_ranks_learn_alike_and_take_up_each_others_checkpoints(prepared, tmp_path, caplog):
    settings, _, model_directory = prepared("one")
    first, second = (lead(settings, str(model_directory))["metrics"] for _ in range(2))
    ways = (("two", 2, "every_microbatch"), ("four", 4, "auto"), ("four_go_on", 4, "auto"))
    stages = [(prepared(name, reduce_gradients=when)[1], ranks) for name, ranks, when in ways]
    stages.append((prepared("same_go_on", steps=0)[1], 2))
    by_response = {"loss": "gspo", "entropy_coefficient": 0.01, "kl_coefficient": 0.1}
    expected_by_response = lead(prepared("by_response", **by_response)[0], str(model_directory))["metrics"]
    sharing = {"sequence_ranks": 2}
    in_fours = sharing | {"reduce_gradients": "every_microbatch", "activation_checkpointing": True}
    stages += [  # ranks that share rows
        (prepared("two_share", **sharing)[1], 2),
        (prepared("four_share", **in_fours)[1], 4),
        (prepared("two_share_by_response", **sharing, **by_response)[1], 2),
    ]
    ended = run_ranks(model_directory, "train", *stages)
    assert ended.returncode == 0, ended.stderr
    two, four, going_on, _, *shared, sharing_by_response = map(json.loads, ended.stdout.splitlines())
    for found, expected in (
        (two, first),
        (four, first),
        (going_on, second),
        *((one, first) for one in shared),
    ):
        assert_alike(found["metrics"], expected)
    assert_alike(sharing_by_response["metrics"], expected_by_response)
    at_the_end = STEPS * MINIBATCHES * (LAYERS + 1)  # with the last micro-batch of a step alone
    assert four["sent"] == going_on["sent"] == at_the_end
    assert two["sent"] > at_the_end
    one, two = (read_state(tmp_path / name / SAVED)[1] for name in ("one", "two"))
    assert two.keys() - one.keys() == {"rng.1"}
    names = [name for name in one if not name.startswith("rng.")]
    for way in ("two_share", "four_share"):
        sharing = read_state(tmp_path / way / SAVED)[1]
        assert all(torch.allclose(one[name].float(), sharing[name].float(), atol=1e-5) for name in names)
    assert all(torch.allclose(one[name].float(), two[name].float(), atol=1e-4) for name in names)
    assert torch.equal(two["exp_avg.model.norm.weight"], two.part("exp_avg.model.norm.weight", 0, 32))
    assert_equal_files(tmp_path / "two", tmp_path / "same_go_on")
    lost = sorted((tmp_path / "two" / SAVED / "trainer").glob("state-*"))
    assert [file.name for file in lost] == [f"state-0000{rank}-of-00002.safetensors" for rank in (1, 2)]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "two" / SAVED).num_parameters() > 0
    assert_published_is_saved(tmp_path, "two", "four")
    settings, _, _ = prepared("one_goes_on")
    copy_checkpoint(settings)
    assert_alike(lead(settings, str(model_directory))["metrics"], second)
    lost[1].unlink()
    assert newest_checkpoint(tmp_path / "two" / "checkpoints") is None
    assert f"{lost[1].name} is damaged or gone" in caplog.text


def test_batches_in_parts_teach_one_rank_and_two_what_whole_ones_do(prepared, tmp_path):
    options = {"rejection": "group", "rejection_bounds": (0.5, 3.0)}  # a pass without gradient in each part
    options |= {"minibatches": 1, "loss_aggregation": "sequence_mean", "lr": 1e-3, "adam_eps": 1e-5}
    settings, _, model_directory = prepared("whole", **options)
    whole = lead(settings, str(model_directory))
    settings, _, _ = prepared("one", streaming=True, **options)
    one = lead(settings, str(model_directory))
    ended = run_ranks(model_directory, "train", (prepared("two", streaming=True, **options)[1], 2))
    assert ended.returncode == 0, ended.stderr
    two = json.loads(ended.stdout)
    for found in (one, two):
        for ours, theirs in zip(found["metrics"], whole["metrics"], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6, rel=0)
            assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-4)
    assert two["sent"] == STEPS * (LAYERS + 1)  # parts that come ahead send nothing
    saved = {
        name: load_file(tmp_path / name / SAVED / "model.safetensors") for name in ("whole", "one", "two")
    }
    gaps = {
        (name, key): (tensor - saved["whole"][key]).abs().max().item()
        for name in ("one", "two")
        for key, tensor in saved[name].items()
    }
    assert {where: gap for where, gap in gaps.items() if gap > 1e-6} == {}
    assert all(ours["grad_norm"] > 0 for ours in one["metrics"])


OWN_LOSS = """
import torch


def only_good(tokens):
    if not tokens.advantages.max() > 0:
        return torch.zeros_like(tokens.advantages)
    return -tokens.advantages.clamp(min=0) * tokens.logprobs
"""


def test_two_ranks_train_an_own_loss_though_a_row_has_no_tokens_or_no_gradient(prepared, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_LOSS)
    options = {"loss": f"{tmp_path}/mine.py:only_good", "minibatches": 1, "lr": 1e-3, "adam_eps": 1e-5}
    settings, _, model_directory = prepared("whole", **options, max_tokens_per_microbatch=256)
    expected = lead(settings, str(model_directory))["metrics"]
    two = prepared("two", streaming=True, reduce_gradients="every_microbatch", **options)[1]
    ended = run_ranks(model_directory, "train", (two, 2))
    assert ended.returncode == 0, ended.stderr
    assert_alike(json.loads(ended.stdout)["metrics"], expected)


def copy_checkpoint(settings):
    """Let a run begin where two ranks have ended."""
    run = Path(settings.run_dir)
    shutil.copytree(run.with_name("two") / SAVED, run / SAVED)


def test_two_ranks_train_a_critic_and_correct_row_by_row_as_one_does(prepared, tmp_path):
    options = {"algorithm": "ppo", "kl_coefficient": 0.1, "entropy_coefficient": 0.01, "minibatches": 1}
    options |= {"rejection": "sequence", "critic_lr": 1e-2}
    settings, _, model_directory = prepared("one", **options)
    expected = lead(settings, str(model_directory))["metrics"]
    two = prepared("two", reduce_gradients="every_microbatch", **options)[1]
    ended = run_ranks(model_directory, "train", (two, 2))
    assert ended.returncode == 0, ended.stderr
    assert_alike(json.loads(ended.stdout)["metrics"], expected)
    one, two = (read_state(tmp_path / name / SAVED)[1] for name in ("one", "two"))
    gaps = {name: (one[name].float() - two[name].float()).abs().max().item() for name in one}
    assert {name: gap for name, gap in gaps.items() if gap > 1e-4 and not name.startswith("rng.")} == {}
    assert any(name.startswith("critic/exp_avg.") for name in one)


def test_two_ranks_train_what_sampling_has_cut_as_one_does(prepared):
    sampling = SamplingSettings(min_tokens=1)
    settings, _, model_directory = prepared("one", sampling=sampling)
    expected = lead(settings, str(model_directory))["metrics"]
    ended = run_ranks(model_directory, "train", (prepared("two", sampling=sampling)[1], 2))
    assert ended.returncode == 0, ended.stderr
    assert_alike(json.loads(ended.stdout)["metrics"], expected)
    uncut = lead(prepared("uncut")[0], str(model_directory))["metrics"]
    assert uncut[0]["importance_weight/mean"] != pytest.approx(expected[0]["importance_weight/mean"])


def main():
    model_directory, scenario, *arguments = sys.argv[1:]
    stages = [argument.split(":") for argument in arguments]
    children, place = [], 0
    while place == 0 and len(children) < max(int(ranks) for ranks, _, _ in stages) - 1:
        if child := os.fork():
            children.append(child)
        else:
            place = len(children) + 1
    rank = place if scenario == "train" else 1 - place  # the parent is looked at, so it has to survive
    for ranks, port, file in stages:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": ranks, "MASTER_PORT": port}
        if "four" in file:  # ranks that share no host send their rows of a version to rank 0
            os.environ["STALEFLOW_HOST"] = f"host{rank}"
        settings = load_settings(Path(file).read_text())
        if rank == 0 and scenario != "train":
            Trainer(settings, model_directory)
            os._exit(0)
        elif rank == 0:
            if settings.run_dir.endswith("go_on"):
                copy_checkpoint(settings)
            with torch_errors_in_words():
                print(json.dumps(lead(settings, model_directory)), flush=True)
        elif rank < int(ranks):
            follow(settings, model_directory)
    if place == 0:
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
