"""Several turns from the torch engine to the trainer: the logprobs of what was sampled are the same."""

import random

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.messages import GIVEN, Segment, Train, TrainItem
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.engines.interface import Generation
from workers.engines.torch import make_engine
from workers.trainer.batch import read_batch
from workers.trainer.packed_forward import pack_row, response_logprobs
from workers.trainer.trainer import Trainer

VOCABULARY, TURNS = 24, 4
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, initializer_range=0.3,
        max_position_embeddings=96, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return WorkerSettings(
        run_dir=str(directory), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        rollout=RolloutSettings(max_prompt_tokens=48, max_response_tokens=48, device="cpu"),
        trainer=TrainerSettings(device="cpu"),
    )  # fmt: skip


def play(engine, episodes, source):
    """Episodes of four turns side by side: (segments, tokens, logprobs of sampled ones) of each."""
    played = [([], [], []) for _ in range(episodes)]
    for number in range(TURNS):
        for member, (segments, tokens, _) in enumerate(played):
            given = [source.randrange(2, VOCABULARY) for _ in range(source.randint(1, 5))]
            segments.append(Segment(2 * number, GIVEN, len(given)))
            tokens += given
            engine.add(Generation((0, member, number), list(tokens), [], source.randint(1, 6), seed=member))
        counts = [0] * episodes
        while engine.is_busy():
            for sampled in engine.step():
                member = sampled.key[1]
                played[member][1].append(sampled.token)
                played[member][2].append(sampled.logprob)
                counts[member] += 1
        for (segments, _, _), count in zip(played, counts, strict=True):
            segments.append(Segment(2 * number + 1, 0, count))
    return played


def trained_logprobs(settings, played, *, changed=None):
    """What the trainer makes of the same tokens; one of them may be another."""
    items = tuple(
        TrainItem(0, member, 0, 0.0, 1.0, "stop", tuple(segments), episode=member)
        for member, (segments, _, _) in enumerate(played)
    )
    tokens = np.array([token for _, tokens, _ in played for token in tokens], dtype="<i4")
    if changed is not None:
        tokens[changed] = 2 + (tokens[changed] - 1) % (VOCABULARY - 2)
    logprobs = np.array([logprob for _, _, logprobs in played for logprob in logprobs], dtype="<f4")
    batch = read_batch(Train(0, items), (b"", tokens.tobytes(), logprobs.tobytes()))
    row = pack_row(batch, range(len(items)), torch.device("cpu"))
    with torch.no_grad():
        return response_logprobs(Trainer(settings, settings.run_dir).model, row, temperature=1.0)[0]


@pytest.mark.parametrize("episodes", [40, pytest.param(200, marks=pytest.mark.thorough)])
def test_logprobs_of_sampled_tokens_are_those_of_the_engine_over_all_turns(settings, episodes):
    played = play(make_engine(settings, settings.run_dir), episodes, random.Random(0))
    engine = torch.tensor([logprob for _, _, logprobs in played for logprob in logprobs])
    trainer = trained_logprobs(settings, played)
    assert len(engine) > 7 * episodes
    apart = (engine - trainer).abs().max().item()
    print(f"{len(engine)} tokens of {episodes} episodes: logprobs at most {apart:.1e} apart")
    assert apart < TOLERANCE
    given = len(played[0][1]) - played[0][0][-1].count - 1  # the last token given to the first episode
    other = trained_logprobs(settings, played, changed=given)
    assert (engine - other).abs().max().item() > 100 * TOLERANCE
