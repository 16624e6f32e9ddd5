"""What `check` says of a LoRA run, from the headers of the model's weights."""

import pytest

from controller.check import lora
from controller.check.lora import adapter_parameters, adapter_problems
from controller.check.problems import check
from controller.config.models import Config
from controller.config.rules import cross_field_problems

WEIGHTS = {
    "model.embed_tokens.weight": (48, 8),
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 32),
    "model.layers.0.input_layernorm.weight": (8,),
    "lm_head.weight": (48, 8),
}


@pytest.fixture(autouse=True)
def with_peft(monkeypatch):
    """Whether peft is installed here must not matter."""

    monkeypatch.setattr(lora, "find_module", lambda name: name)


def config(trainer=None, **lora):
    return Config.model_validate({"trainer": {"lora": lora, **(trainer or {})}})


def problems(shape=None, weights=WEIGHTS, trainer=None, **lora):
    return dict(adapter_problems(config(trainer, **lora), shape or {}, weights))


def test_layers_that_the_model_has_not_are_named_with_those_that_it_has():
    assert problems(rank=2) == {}
    assert problems(rank=2, target_modules=["q_proj", "mlp.down_proj"]) == {}
    found = problems(rank=2, target_modules=["q_proj", "w1"])["trainer.lora.target_modules"]
    assert "w1, and no linear layer" in found
    assert "down_proj, lm_head, q_proj" in found
    assert problems(weights={}, rank=2, target_modules=["w1"]) == {}  # a factory will make the model


def test_a_tied_output_layer_is_refused_and_another_one_is_not():
    assert problems(rank=2, target_modules=["lm_head"]) == {}
    found = problems({"tie_word_embeddings": True}, rank=2, target_modules=["lm_head"])
    assert "shares its weight" in found["trainer.lora.target_modules"]


def test_a_trainer_without_peft_is_refused_unless_it_attaches_from_outside(monkeypatch):
    monkeypatch.setattr(lora, "find_module", lambda name: None)
    assert "needs peft" in problems(rank=2)["trainer.lora.rank"]
    assert problems(rank=2, trainer={"local": False}) == {}
    assert problems() == {}


def test_the_numbers_that_are_trained_are_counted():
    assert adapter_parameters(config(rank=2), WEIGHTS) == 2 * (16 + 8 + 8 + 32)
    assert adapter_parameters(config(rank=3, target_modules=["q_proj"]), WEIGHTS) == 3 * (16 + 8)
    assert adapter_parameters(config(), WEIGHTS) == 0


@pytest.mark.parametrize(
    ("trainer", "lora", "field"),
    [
        ({}, {"alpha": 8}, "trainer.lora.rank"),
        ({}, {"target_modules": ["q_proj"]}, "trainer.lora.rank"),
        ({"engine": "mine.py:Trainer"}, {"rank": 2}, "trainer.lora.rank"),
        ({}, {"rank": 2, "alpha": 8}, None),
        ({}, {"rank": 0, "alpha": 32}, None),
    ],
)
def test_an_adapter_that_nobody_would_train_is_refused(trainer, lora, field):
    found = [fields[0] for fields, _ in cross_field_problems(config(trainer, **lora))]
    assert found == ([field] if field else [])


def test_peft_is_missed_before_the_model_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lora, "find_module", lambda name: None)
    tree = {"model": {"factory": "task.py:make"}, "trainer": {"lora": {"rank": 2}}}
    found = [one.field for one in check(Config.model_validate(tree)) if "needs peft" in one.text]
    assert found == ["trainer.lora.rank"]
