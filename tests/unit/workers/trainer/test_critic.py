"""The critic's values: what its head makes of the hidden states."""

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from tests.unit.workers.trainer.test_trainer import CPU, SHAPE, make_batch, settings  # noqa: F401 - a fixture
from workers.trainer.batch import read_batch
from workers.trainer.packed_forward import pack_row
from workers.trainer.trainer import Trainer


def test_values_pass_the_cap_of_the_logits(settings, tmp_path):  # noqa: F811
    """Gemma 2 holds logits within 30: a reward beyond that could not be learnt."""
    torch.manual_seed(0)
    directory = tmp_path / "gemma2"
    Gemma2ForCausalLM(Gemma2Config(**SHAPE, final_logit_softcapping=1.0)).save_pretrained(directory)
    trainer = Trainer(settings(algorithm="ppo"), str(directory))
    batch = read_batch(*make_batch(groups=1, size=2))
    with torch.no_grad():
        weight = trainer._critic.model.get_output_embeddings().weight
        weight.to_local().fill_(0.3)
        values = trainer._critic.values(pack_row(batch, [0, 1], CPU))
        model, expected = AutoModelForCausalLM.from_pretrained(directory), []
        for tokens, positions in zip(batch.tokens, batch.positions, strict=True):
            states = model.model(torch.from_numpy(tokens)[None]).last_hidden_state[0]
            expected.append(states[positions - 1].sum(-1) * 0.3)
    assert torch.cat(expected).abs().max() > 2
    assert torch.allclose(values, torch.cat(expected), atol=1e-4)
