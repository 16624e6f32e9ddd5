"""What `check` says of a model from its config.json and the headers of its weights."""

import pytest

from controller.check.model import model_findings
from controller.check.vllm import vllm_problems
from controller.config.models import Config
from protocol.settings import RolloutSettings, SamplingSettings

MIXTURES = {
    "qwen3_moe": {"num_experts": 128},
    "mixtral": {"num_local_experts": 8},
    "deepseek_v3": {"n_routed_experts": 256},
    "a mixture inside": {"text_config": {"num_experts": 64}},
}


def findings(level, shape, **sections):
    found = model_findings(Config.model_validate(sections), shape)
    return {field: text for kind, field, text in found if kind == level}


def errors(shape, **sections):
    return findings("error", shape, **sections)


def lengths(prompt, response):
    return {"rollout": {"max_prompt_tokens": prompt, "max_response_tokens": response}}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("engine", ["vllm", "torch"])
def test_all_weights_of_a_mixture_are_trained_on_either_engine(name, engine):
    assert errors(MIXTURES[name], rollout={"engine": engine}) == {}


def test_a_dense_model_has_no_experts_to_speak_of():
    trainer = {"lora": {"rank": 8}}
    for shape in ({"num_hidden_layers": 2, "num_experts": 0}, {"num_local_experts": 1}):
        assert findings("note", shape, trainer=trainer) == errors(shape, trainer=trainer) == {}


def test_an_adapter_of_a_mixture_is_trained_and_it_is_said_that_experts_have_none():
    trainer = {"lora": {"rank": 8}}
    assert errors({"num_experts": 128}, trainer=trainer) == {}
    words = findings("note", {"num_experts": 128}, trainer=trainer)["trainer.lora.target_modules"]
    assert "128 experts" in words
    assert "no adapter" in words


@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}, 2048),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 100}}, 100),
        ({"text_config": {"attention_chunk_size": 8192}}, 8192),
    ],
)
def test_a_run_that_passes_a_length_that_the_trainer_cannot_is_refused(shape, limit):
    words = errors(shape, **lengths(limit // 2, limit // 2 + 1))["rollout.max_response_tokens"]
    assert f"{limit} tokens" in words
    assert f"{limit + 1} tokens" in words
    assert errors(shape, **lengths(limit // 2, limit // 2)) == {}


def test_an_adapter_of_a_mixture_on_vllm_is_refused_as_nobody_has_seen_it_work():
    sections = {"trainer": {"lora": {"rank": 8}}, "rollout": {"engine": "vllm"}}
    assert "rollout.engine: torch" in errors({"num_experts": 128}, **sections)["trainer.lora.rank"]


def test_an_engine_and_a_trainer_of_ones_own_know_their_own_limits():
    shape = {"attention_chunk_size": 8, "num_experts": 8}
    assert errors(shape, trainer={"engine": "mine.py:Trainer"}, rollout={"engine": "mine.py:make"}) == {}


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, "num_key_value_heads 2 of the model"),
        ({"text_config": {"num_attention_heads": 6}}, "num_attention_heads 6 of the model"),
        ({"num_attention_heads": 8, "num_key_value_heads": 4}, None),
        ({"num_attention_heads": None}, None),
        ({}, None),
    ],
)
def test_heads_that_ranks_of_a_row_cannot_share_are_refused_before_the_run(shape, named):
    trainer = {"ranks": 4, "sequence_ranks": 4}
    found = errors(shape, trainer=trainer).get("trainer.sequence_ranks")
    assert (named is None and found is None) or f"is 4, which does not divide {named}" in str(found)
    assert errors(shape, trainer={"ranks": 4}) == {}
    assert errors(shape, trainer={**trainer, "engine": "my_engine.py:Mine"}) == {}


def test_lengths_that_change_nothing_for_the_trainer_are_left_alone():
    shape = {
        "sliding_window": 128,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        "attention_chunk_size": 16,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    assert errors(shape, **lengths(512, 512)) == {}


@pytest.mark.parametrize(
    ("sampling", "field", "said"),
    [
        ({"top_p": 0.95}, "top_p", "at 4 bytes each, 19000 bytes at most more"),
        ({"top_k": 7, "min_p": 0.1}, "top_k", "top_k and min_p cut tokens off"),
        ({"top_k": 7}, "top_k", "costs at most 28 bytes more"),
        ({"min_tokens": 7}, "min_tokens", "min_tokens cut tokens off"),
    ],
)
def test_what_importance_weights_will_be_under_a_cut_is_noted(sampling, field, said):
    shape = {"vocab_size": 152_000}
    words = findings("note", shape, rollout={"sampling": sampling})[f"rollout.sampling.{field}"]
    assert "importance weights have mean 1" in words
    assert said in words


def test_an_engine_of_the_users_own_has_to_tell():
    rollout = {"engine": "mine.py:make", "sampling": {"top_p": 0.95}}
    words = findings("note", {}, rollout=rollout)["rollout.sampling.top_p"]
    assert "an engine that does not tell what it kept is refused" in words


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"top_p": 0.95}, "top_p"),
        ({"min_p": 0.1, "min_tokens": 3}, "min_p"),
        ({"top_p": 0.9, "top_k": 40}, None),
    ],
)
def test_on_vllm_a_cut_without_a_bound_is_refused_with_the_bias(sampling, field):
    rollout = RolloutSettings(sampling=SamplingSettings(**sampling), instances=0)
    problems = dict(vllm_problems(rollout, {}))
    if field is None:
        assert not problems
    else:
        words = problems[f"rollout.sampling.{field}"]
        assert "0.32.0 was tried" in words
        assert "0.911 at top_p 0.9 and 0.765 at top_k 5" in words


@pytest.mark.parametrize("temperature", [0.004, 2.5])
def test_a_temperature_that_vllm_changes_or_refuses_is_refused_before_the_run(temperature):
    given = {"temperature": temperature}
    evaluation = {"sampling": given, "every_steps": 2, "data": {"held": {"path": "held.jsonl"}}}
    words = errors({}, rollout={"engine": "vllm", "sampling": given}, evaluation=evaluation)
    assert "0 or from 0.01 to 2" in words["rollout.sampling.temperature"]
    assert "0 or from 0.01 to 2" in words["evaluation.sampling.temperature"]
    assert errors({}, rollout={"sampling": given}, evaluation=evaluation) == {}
    for least_or_most in (0.01, 2.0):
        assert errors({}, rollout={"engine": "vllm", "sampling": {"temperature": least_or_most}}) == {}


def test_the_whole_distribution_at_another_temperature_is_exact_and_not_noted():
    assert findings("note", {}, rollout={"sampling": {"temperature": 0.6}}) == {}
