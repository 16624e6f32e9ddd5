"""Suggests the key that an unknown key may mean: the same setting of another system, or a similar name.

Invariant: each key on the left exists, and no name on the right does (a test says so); a name stands here
only if users of verl, TRL, OpenRLHF, prime-rl, AReaL, NeMo-RL, SkyRL or slime write it. One with a dot is the
end of a path, and counts before the last part alone. A name is similar if it is a typing error, a part of a
longer name, or the same name in another section.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

NAMES: dict[str, str] = {
    "rollout.group_size": "n n_samples n_samples_per_prompt num_generations num_generations_per_prompt "
    "num_return_sequences num_samples_per_prompt rollouts_per_example samples_per_prompt rollout_n",
    "rollout.max_response_tokens": "generate_max_len max_completion_length max_completion_tokens max_gen_len "
    "max_generate_length max_length max_model_len max_new_tokens max_response_length max_response_len "
    "max_seq_len response_length seq_len",
    "rollout.max_prompt_tokens": "max_input_length max_prompt_len max_prompt_length prompt_length "
    "prompt_max_len",
    "rollout.instances": "data_parallel_size num_engines num_rollout_workers rollout_num_engines "
    "vllm_num_engines",
    "rollout.max_running": "max_num_seqs max_running_requests",
    "rollout.engine": "backend inference_backend rollout_backend use_vllm",
    "rollout.vllm.is_eager": "enforce_eager",
    "rollout.vllm.tensor_parallel_size": "tensor_model_parallel_size tp tp_size vllm_tensor_parallel_size",
    "rollout.vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "trainer.batch_groups": "batch_size generation_batch_size global_batch_size num_prompts_per_step "
    "prompts_per_step rollout_batch_size train_batch_size",
    "trainer.minibatches": "mini_batch_size ppo_mini_batch_size",
    "trainer.max_tokens_per_microbatch": "gradient_accumulation_steps max_tokens_per_gpu micro_batch_size "
    "micro_train_batch_size per_device_train_batch_size ppo_max_token_len_per_gpu ppo_micro_batch_size "
    "ppo_micro_batch_size_per_gpu train_micro_batch_size",
    "trainer.lr": "actor_learning_rate learning_rate max_lr",
    "trainer.lr_schedule": "lr_decay_style lr_scheduler lr_scheduler_type",
    "trainer.warmup_steps": "lr_warmup_steps lr_warmup_steps_ratio num_warmup_steps warmup_ratio "
    "warmup_steps_proportion",
    "trainer.lr_end": "min_lr min_lr_ratio",
    "trainer.critic_lr": "critic_learning_rate",
    "trainer.betas": "adam_beta1 adam_beta2 adam_betas",
    "trainer.adam_eps": "adam_epsilon",
    "trainer.weight_decay": "l2 wd",
    "trainer.grad_clip": "clip_grad gradient_clipping max_grad_norm max_norm",
    "trainer.kl_coefficient": "beta init_kl_coef kl_beta kl_coef kl_coeff kl_ctl kl_loss_coef "
    "kl.init_coef kl_penalty_coef reference_policy_kl_penalty use_kl_loss",
    "trainer.kl_estimator": "kl.estimator kl_loss_type kl_penalty",
    "trainer.kl_in": "kl.use_loss use_kl_in_reward",
    "trainer.entropy_coefficient": "ent_coef entropy_coef entropy_coeff entropy_loss_coef",
    "trainer.clip_low": "clip_ratio clip_ratio_low cliprange eps_clip epsilon epsilon_low ratio_clip_min",
    "trainer.clip_high": "clip_ratio_high eps_clip_high eps_clip_higher epsilon_high ratio_clip_max",
    "trainer.dual_clip": "clip_ratio_c delta eps_clip_c ratio_clip_c",
    "trainer.value_clip": "cliprange_value",
    "trainer.gae_lambda": "lam lambd",
    "trainer.algorithm": "adv_estimator advantage.estimator advantage_estimator loss_type",
    "trainer.advantage_scale": "no_std_norm norm_adv_by_std_in_grpo scale_rewards",
    "trainer.overlong_buffer": "overlong_buffer.len overlong_buffer_len",
    "trainer.overlong_penalty": "overlong_buffer.penalty_factor overlong_penalty_factor",
    "trainer.loss": "importance_sampling_level loss_mode policy_loss_type",
    "trainer.loss_aggregation": "loss_agg_mode",
    "trainer.importance_cap": "behav_imp_weight_cap behave_imp_weight_cap rollout_is_threshold "
    "tis_imp_ratio_cap vllm_importance_sampling_cap vllm_importance_sampling_clip_max",
    "trainer.importance_low": "vllm_importance_sampling_clip_min",
    "trainer.importance": "is_correction_level is_correction_mode rollout_is "
    "vllm_importance_sampling_correction vllm_importance_sampling_mode",
    "trainer.rejection": "rollout_rs",
    "trainer.rejection_bounds": "is_correction_threshold rollout_rs_threshold",
    "trainer.mask_truncated": "mask_truncated_completions overlong_filtering",
    "trainer.checkpoint_steps": "checkpoint_interval save_every save_freq save_interval save_period "
    "save_steps",
    "trainer.keep_checkpoints": "ckpt.max_num keep_last max_actor_ckpt_to_keep max_ckpt_num save_total_limit",
    "trainer.ranks": "gpus_per_node n_gpus_per_node nproc_per_node num_gpus num_gpus_per_node world_size",
    "trainer.activation_checkpointing": "enable_gradient_checkpointing gradient_checkpointing",
    "trainer.cpu_offload": "adam_offload offload_optimizer optimizer_offload param_offload",
    "trainer.lora.rank": "lora_r lora_rank",
    "trainer.lora.alpha": "lora_alpha",
    "trainer.lora.target_modules": "lora_target_modules",
    "staleness.max_staleness": "async_level eta max_async_level max_head_offpolicyness max_lag "
    "max_off_policy_steps max_off_policy_threshold max_policy_age max_staleness_steps "
    "max_trajectory_age_steps max_weight_staleness off_policyness staleness_threshold",
    "staleness.in_flight_batches": "max_concurrent_rollouts max_inflight max_inflight_prompts",
    "staleness.sync_steps": "parameter_sync_interval trigger_parameter_sync_step update_weights_interval "
    "weight_sync_interval weight_sync_steps",
    "staleness.filter": "dynamic_filtering_enable dynamic_sampling filter_groups filter_groups.enable",
    "run.steps": "max_num_steps max_steps num_steps num_train_steps total_train_steps total_training_steps",
    "run.name": "experiment_name project_name run_name trial_name",
    "run.dir": "checkpoint_dir ckpt.path ckpt_dir default_local_dir fileroot output_dir save_path",
    "run.resume": "load_checkpoint resume_from_checkpoint resume_mode",
    "data.epochs": "num_epochs num_train_epochs total_epochs",
    "data.path": "data_path dataset dataset_name dataset_path prompt_data train_file train_files",
    "data.columns": "answer_key input_key label_key prompt_key",
    "evaluation.data": "eval.dataset eval_data eval_dataset test_files val_files",
    "evaluation.every_steps": "eval.steps eval_freq eval_interval eval_steps test_freq val_period",
    "evaluation.samples": "eval.n_samples_per_prompt num_generations_eval val_kwargs.n",
    "evaluation.sampling.temperature": "eval.temperature val_kwargs.temperature",
    "evaluation.sampling.top_k": "val_kwargs.top_k",
    "evaluation.sampling.top_p": "val_kwargs.top_p",
    "model.path": "actor_model model_name model_name_or_path model_path pretrain "
    "pretrained_model_name_or_path",
    "model.dtype": "bf16 precision torch_dtype",
    "reward.function": "compute_score custom_reward_function custom_rm_path remote_rm_url reward_fn "
    "reward_func",
    "reward.rewards": "functions reward_funcs reward_functions reward_model reward_weights rubric",
}  # fmt: skip
"""Key -> names of the same setting in other systems."""
REMARKS = {
    "trainer.batch_groups": "It counts prompts, each with rollout.group_size responses.",
    "trainer.minibatches": "It says how many there are, not how large they are.",
    "trainer.max_tokens_per_microbatch": "It is a budget in tokens, which micro-batches are packed into.",
    "trainer.lr_end": "It is a share of trainer.lr.",
    "trainer.clip_low": "It is the lower bound alone; the upper one is trainer.clip_high.",
    "trainer.clip_high": "With the loss cispo the bound is 1 + clip_high, so TRL's epsilon_high 5 is 4 here.",
    "trainer.algorithm": "It sets several keys (docs/algorithms.md). TRL's loss_type grpo, dapo, dr_grpo is "
    "trainer.loss_aggregation sequence_mean, token_mean, sequence_sum.",
    "trainer.loss": "A ratio per response, as in GSPO, is `gspo`.",
    "trainer.loss_aggregation": "token-mean is token_mean, seq-mean-token-mean is sequence_mean, "
    "seq-mean-token-sum-norm is sequence_sum.",
    "trainer.advantage_scale": "Give group_std, batch_std or none.",
    "trainer.overlong_buffer": "It is a share of rollout.max_response_tokens.",
    "trainer.kl_in": "Give loss or reward.",
    "trainer.kl_estimator": "Give k1, k2 (mse) or k3 (low_var_kl).",
    "trainer.importance": "Give truncate, mask or none; trainer.importance_level is token or sequence.",
    "trainer.rejection_bounds": "verl's thresholds of k1 are bounds of the rejection_metric ratio.",
    "trainer.warmup_steps": "It counts train steps.",
    "rollout.max_response_tokens": "The prompt has a limit of its own, rollout.max_prompt_tokens.",
    "staleness.in_flight_batches": "It counts batches.",
    "staleness.sync_steps": "It is read by `staleness.synchronization: every_few`.",
    "staleness.filter": "For dynamic sampling, give zero_variance.",
    "data.columns": "For example `columns: {prompt: question, answer: solution}`.",
    "reward.rewards": "For example `rewards: [{kind: math}, {function: mine.py:length, weight: 0.1}]`.",
    "evaluation.data": "For example `data: {test: {path: test.jsonl}}`.",
}
"""Remarks on keys whose values mean something else in other systems."""
ABSENT: dict[str, str] = {
    "num_iterations num_ppo_epochs ppo_epochs": "A batch is trained once here; trainer.minibatches splits it "
    "into several optimizer steps.",
    "ref_model_mixup_alpha ref_model_sync_steps sync_ref_model": "The KL is to the initial model throughout; "
    "for another one, begin a new run with model.path at a checkpoint.",
    "kl.horizon kl.target kl_ctrl.horizon kl_ctrl.target_kl target_kl": "trainer.kl_coefficient is constant.",
    "frequency_penalty presence_penalty repetition_penalty": "Penalties would sample from another "
    "distribution than the one that is trained.",
}
"""Names of settings that nothing here corresponds to -> what holds instead."""
OURS = {name: key for key, names in NAMES.items() for name in names.split()}
NOT_HERE = {name: text for names, text in ABSENT.items() for name in names.split()}
MOST_SHOWN = 8
SLIP = 0.7  # likeness of two words from which one counts as a typing error
MOST = 3  # most longer names that are suggested for a part


def our_key(path: str) -> str | None:
    """The key for a setting of another system, named by its dotted path; None if the name is unknown."""
    return _known(path, OURS)


def advice_on(path: str) -> str | None:
    """What to do about a setting of another system, in words; None if its name is unknown."""
    if (ours := our_key(path)) is not None:
        return " ".join(filter(None, [f"Did you mean `{ours}`?", REMARKS.get(ours)]))
    return _known(path, NOT_HERE)


def _known(path: str, names: dict[str, str]) -> str | None:
    parts = path.lower().replace("-", "_").split(".")
    return names.get(".".join(parts[-2:])) or names.get(parts[-1])


def translated(settings: dict[str, str | None]) -> str:
    """What settings of another system are here, in words; "" if nothing is known of any.

    `settings`: our key for each path, or None. Remarks on the keys stand behind, each once.
    """
    known = {theirs: ours for theirs, ours in settings.items() if ours}
    shown = list(known.items())[:MOST_SHOWN]
    said = ", ".join(f"`{theirs}` is `{ours}` here" for theirs, ours in shown)
    remarks = [f"{key}: {REMARKS[key]}" for key in dict.fromkeys(ours for _, ours in shown) if key in REMARKS]
    absent = [
        f"`{theirs}`: {text}" for theirs in settings.keys() - known if (text := _known(theirs, NOT_HERE))
    ]
    return " ".join(filter(None, [said and f"{said}.", *remarks, *sorted(absent)]))


def leaves(value: Any, prefix: str) -> Iterator[str]:
    """Dotted paths of all plain values below a mapping."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{prefix}.{name}")
    else:
        yield prefix


def keys_at(model: type[BaseModel], section: str) -> dict[str, str]:
    """Name -> dotted path of each key of a section, which may be an entry of a list (`data.sources.0`)."""
    models = [model]
    for part in section.split(".") if section else ():
        models = [inner for outer in models for inner in _below(outer, part)]
    prefix = f"{section}." if section else ""
    return {name: f"{prefix}{name}" for one in models for name in one.model_fields}


def nearest(name: str, here: Sequence[str], everywhere: Sequence[str]) -> list[str]:
    """Dotted paths that a name may mean; `here` are the paths of its section."""
    own = {path.rpartition(".")[2]: path for path in here}
    wanted = set(name.split("_"))
    longer = [path for known, path in own.items() if wanted <= set(known.split("_"))]
    if 0 < len(longer) <= MOST:
        return longer
    if slips := difflib.get_close_matches(name, own, n=1, cutoff=SLIP):
        return [own[slips[0]]]
    same = [path for path in everywhere if path.rpartition(".")[2] == name]
    beside = [path for path in same if here and path.split(".")[0] == here[0].split(".")[0]]
    return (beside or same)[:MOST]


def _below(model: type[BaseModel], part: str) -> Iterator[type[BaseModel]]:
    """The models of the field `part` of a model; a number, as a place in a list, gives the model itself."""
    if part.isdigit():
        yield model
    elif part in model.model_fields:
        yield from models_in(model.model_fields[part].annotation)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models of a field: of its value, of an entry of its list or mapping, or several to choose from."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)
