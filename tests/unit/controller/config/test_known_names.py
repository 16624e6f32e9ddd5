"""Names that other systems have for our keys, and the one list of keys that take an import path."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.config.known_names import NOT_HERE, OURS, REMARKS
from controller.config.load import load_config, valid_keys
from controller.config.models import Config, Section
from controller.config.pluggable import BUILT_IN, FILES
from protocol.errors import ConfigError


def problems(tmp_path: Path, text: str = "", *overrides: str) -> str:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(str(tmp_path / "run.yaml"), overrides)
    return str(raised.value)


def test_every_name_of_others_leads_to_a_key_of_ours_and_is_none_itself():
    known = set(valid_keys())
    assert {*OURS.values(), *REMARKS} <= known
    leaves = {key.rpartition(".")[2]: key for key in known}
    assert {name: leaves[name] for name in (*OURS, *NOT_HERE) if name in leaves} == {}
    assert not OURS.keys() & NOT_HERE.keys()


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("trainer.learning_rate", "trainer.lr"),  # TRL, OpenRLHF
        ("trainer.beta", "trainer.kl_coefficient"),  # TRL
        ("rollout.n", "rollout.group_size"),  # verl
        ("num_generations", "rollout.group_size"),  # TRL, at the top
        ("trainer.max_completion_length", "rollout.max_response_tokens"),
        ("rollout.sampling.max_new_tokens", "rollout.max_response_tokens"),
        ("data.train_batch_size", "trainer.batch_groups"),
        ("trainer.num_train_epochs", "data.epochs"),
        ("trainer.total_training_steps", "run.steps"),
        ("staleness.max_head_offpolicyness", "staleness.max_staleness"),  # AReaL
        ("orchestrator.max-async-level", "staleness.max_staleness"),  # prime-rl
        ("rollout.rollouts_per_example", "rollout.group_size"),
        ("grpo.num_prompts_per_step", "trainer.batch_groups"),  # NeMo-RL
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "trainer.minibatches"),
        ("trainer.scale_rewards", "trainer.advantage_scale"),  # TRL
        ("trainer.vllm_importance_sampling_clip_max", "trainer.importance_cap"),
        ("algorithm.use_kl_in_reward", "trainer.kl_in"),  # verl
        ("algorithm.rollout_correction.rollout_rs", "trainer.rejection"),
        ("actor_rollout_ref.rollout.val_kwargs.n", "evaluation.samples"),
        ("algo.kl.estimator", "trainer.kl_estimator"),  # OpenRLHF
        ("algo.advantage.estimator", "trainer.algorithm"),
        ("eval.steps", "evaluation.every_steps"),
    ],
)
def test_the_names_of_other_systems_are_understood(tmp_path, key, ours):
    assert f"`{ours}`" in problems(tmp_path, "", f"{key}=1")


def test_a_value_that_cannot_be_taken_over_is_remarked_on(tmp_path):
    assert "`trainer.minibatches`? It says how many" in problems(
        tmp_path, "", "trainer.ppo_mini_batch_size=8"
    )


@pytest.mark.parametrize(
    ("key", "said"),
    [
        # TRL's level of the policy ratio is not our level of the importance weight
        ("trainer.importance_sampling_level", "`trainer.loss`? A ratio per response, as in GSPO, is `gspo`."),
        (
            "trainer.loss_type",
            "TRL's loss_type grpo, dapo, dr_grpo is trainer.loss_aggregation ",
        ),
        ("trainer.epsilon", "`trainer.clip_low`? It is the lower bound alone; the upper one is"),
        ("trainer.epsilon_high", "TRL's epsilon_high 5 is 4 here"),
    ],
)
def test_a_name_whose_nearest_is_another_setting_is_not_taken_for_it(tmp_path, key, said):
    assert said in problems(tmp_path, "", f"{key}=1")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("trainer.num_iterations", "A batch is trained once here"),  # TRL
        ("actor_rollout_ref.actor.ppo_epochs", "A batch is trained once here"),  # verl
        ("trainer.sync_ref_model", "The KL is to the initial model throughout"),
        ("algorithm.kl_ctrl.target_kl", "trainer.kl_coefficient is constant"),
        ("rollout.repetition_penalty", "Penalties would sample from another distribution"),
    ],
)
def test_what_has_no_counterpart_is_said_to_have_none(tmp_path, key, said):
    assert re.search(f"no such (key|section)\\.( `{key}`:)? {said}", problems(tmp_path, "", f"{key}=1"))


def test_remarks_stand_behind_a_translated_section_too(tmp_path):
    text = problems(tmp_path, "actor: {ppo_mini_batch_size: 64, clip_ratio: 0.1, ppo_micro_batch_size: 4}")
    assert "`actor.ppo_mini_batch_size` is `trainer.minibatches` here, `actor.clip_ratio` is" in text
    assert "here. trainer.minibatches: It says how many there are, not how large they are." in text


def test_a_whole_section_of_another_system_is_translated_key_by_key(tmp_path):
    text = problems(
        tmp_path,
        "actor_rollout_ref:\n  rollout: {n: 8, temperature: 0.7, log_prob_use: 1}\n"
        "  actor: {optim: {lr: 1e-6}, entropy_coeff: 0}\n",
    )
    assert "actor_rollout_ref (line 1): there is no such section." in text
    for pair in (
        "`actor_rollout_ref.rollout.n` is `rollout.group_size` here",
        "`actor_rollout_ref.rollout.temperature` is `rollout.sampling.temperature` here",
        "`actor_rollout_ref.actor.optim.lr` is `trainer.lr` here",
        "`actor_rollout_ref.actor.entropy_coeff` is `trainer.entropy_coefficient` here",
    ):
        assert pair in text
    assert "log_prob_use" not in text


def test_a_section_inside_ours_is_translated_too(tmp_path):
    text = problems(tmp_path, "trainer: {optim: {learning_rate: 1e-5}}")
    assert "`trainer.optim.learning_rate` is `trainer.lr` here" in text


@pytest.mark.parametrize("override", ["+trainer.lr=1e-5", "++trainer.lr=1e-5"])
def test_the_signs_of_hydra_are_answered_with_the_plain_override(tmp_path, override):
    assert problems(tmp_path, "", override).endswith("write trainer.lr=1e-5.")


def test_a_mapping_is_called_so(tmp_path):
    assert "expected a mapping, such as {name: value}" in problems(tmp_path, "data: {columns: prompt}")


def test_a_run_in_place_of_a_configuration_leads_to_its_configuration(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match=r"is a folder; expected the path of a YAML configuration\.$"):
        load_config(str(tmp_path / "run"))
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"Its configuration is .*run/config.yaml\.$"):
        load_config(str(tmp_path / "run"))


def test_a_misspelt_section_is_still_a_misspelt_section(tmp_path):
    assert "Did you mean `rollout`?" in problems(tmp_path, "rolout: {n: 8}")


# -- words and booleans --------------------------------------------------------------------------------------


def test_words_are_words_and_booleans_are_booleans(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "run: {name: on}\ndata: {shuffle: no, columns: {answer: yes}}\n"
        "trainer: {streaming: On, local: true}\n"
        "rollout: {vllm: {is_eager: off, engine_args: {enable_prefix_caching: no, quantization: fp8}}}\n"
    )
    config = load_config(str(tmp_path / "run.yaml"), ["staleness.guard=yes", "trainer.loss=no"])
    assert config.run.name == "on"
    assert config.data.shuffle is False
    assert config.data.columns == {"answer": "yes"}
    assert config.trainer.streaming is config.trainer.local is config.staleness.guard is True
    assert config.rollout.vllm.is_eager is False
    assert config.rollout.vllm.engine_args == {"enable_prefix_caching": False, "quantization": "fp8"}
    assert config.trainer.loss == "no"


def test_so_are_they_in_sources_held_out_sets_and_rewards(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "data: {sources: [{path: a, is_chat: yes, where: {kind: [no]}}]}\n"
        "evaluation: {data: {test: {path: b, is_chat: on}}}\n"
        "reward: {rewards: [{function: 'm:f', when: {kind: off}}, {kind: exact, ignore_case: yes}]}\n"
    )
    config = load_config(str(tmp_path / "run.yaml"))
    (source,), (function, exact) = config.data.sources, config.reward.rewards
    assert source.is_chat is config.evaluation.data["test"].is_chat is exact.ignore_case is True
    assert (source.where, function.when) == ({"kind": ["no"]}, {"kind": "off"})


def test_a_word_is_no_boolean_where_nobody_would_read_it_as_one(tmp_path):
    assert "data.shuffle (line 1): 'maybe' is refused; expected a valid boolean" in problems(
        tmp_path, "data: {shuffle: maybe}"
    )


# -- the one list of keys that take an import path -----------------------------------------------------------


def described(model: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from described(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.description or ""


def test_every_key_whose_manual_speaks_of_an_import_path_is_in_the_one_list():
    said = {key for key, text in described(Config) if "mport path" in text}
    assert said - {"data.path", "evaluation.data", "evaluation.reward_function"} == set(BUILT_IN) - {
        "evaluation.reward_function"
    }
    assert set(FILES) <= set(valid_keys())


@pytest.mark.parametrize("key", BUILT_IN)
def test_a_file_beside_the_configuration_is_found_for_every_such_key(tmp_path, monkeypatch, key):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "mine.py").write_text("")
    section, field = key.split(".")
    (tmp_path / "beside" / "run.yaml").write_text(f"{section}: {{{field}: 'mine.py:thing'}}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config("beside/run.yaml")
    assert getattr(getattr(config, section), field) == f"{tmp_path}/beside/mine.py:thing"


def test_a_name_of_what_is_built_in_is_not_taken_for_a_folder(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "config.json").write_text("{}")
    (tmp_path / "run.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert load_config("run.yaml").rollout.engine == "torch"


def test_a_folder_of_data_beside_the_configuration_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside" / "saved").mkdir(parents=True)
    (tmp_path / "beside" / "run.yaml").write_text("data: {path: saved}\n")
    monkeypatch.chdir(tmp_path)
    assert load_config("beside/run.yaml").data.path == f"{tmp_path}/beside/saved"
