"""Which weights are decayed, whatever the shape of norms and biases, and what an older checkpoint gives."""

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, GptOssConfig

from protocol.settings import TrainerSettings
from tests.unit.workers.trainer.test_trainer import make_batch, settings  # noqa: F401 - a fixture
from workers.trainer import trainer as trainer_module
from workers.trainer.sharding import make_optimizer
from workers.trainer.worker import Trainer

SMALL = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
GPT_OSS = GptOssConfig(**SMALL, head_dim=8, num_local_experts=4, num_experts_per_tok=2)  # biases [E, n]
COMMAND_R = CohereConfig(**SMALL, bos_token_id=2, use_qk_norm=True)  # norms [heads, n]


@pytest.mark.parametrize("config", [GPT_OSS, COMMAND_R], ids=lambda config: config.model_type)
def test_norms_and_biases_of_two_dimensions_are_not_decayed_and_all_other_matrices_are(config):
    model = AutoModelForCausalLM.from_config(config)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        torch.nn.init.ones_(weight)
        weight.grad = torch.zeros_like(weight)
    make_optimizer(model, TrainerSettings(lr=1.0, weight_decay=0.5)).step()
    moved = {name for name, weight in model.named_parameters() if (weight != 1).any()}
    spared = {name for name in before if "norm" in name or name.endswith(("bias", "sinks"))}
    assert {before[name].ndim for name in spared} == {1, 2}
    assert moved == set(before) - spared
    assert all((weight == 0.5).all() for name, weight in model.named_parameters() if name in moved)


def decay_by_dimensions(model, options):
    """The optimizer of releases before."""
    trained = [*model.parameters()]
    groups = [
        {"params": [one for one in trained if one.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [one for one in trained if one.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=options.lr, betas=options.betas, eps=options.adam_eps, fused=True
    )  # fmt: skip


def test_a_checkpoint_of_an_optimizer_that_decayed_them_is_taken_up_weight_by_weight(
    settings,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(COMMAND_R).save_pretrained(tmp_path / "model")
    made = settings(weight_decay=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(trainer_module, "make_optimizer", decay_by_dimensions)
        older = Trainer(made, str(tmp_path / "model"))
    older.train_step(*make_batch())
    path = older.save_checkpoint(1)
    resumed = Trainer(made, str(tmp_path / "model"))
    resumed.load_checkpoint(path)
    pairs = zip(older.model.named_parameters(), resumed.model.named_parameters(), strict=True)
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert torch.equal(one.full_tensor(), other.full_tensor()), name
        kept, taken = older._optimizer.state[one], resumed._optimizer.state[other]
        assert kept["step"] == taken["step"] == 1
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(kept[moment].full_tensor(), taken[moment].full_tensor()), name
    resumed.train_step(*make_batch(seed=1, train_version=1))
    assert resumed.policy_version == 2
    groups = [len(group["params"]) for group in resumed._optimizer.param_groups]
    assert groups == [15, 7], "the norms of heads are with the others now"
