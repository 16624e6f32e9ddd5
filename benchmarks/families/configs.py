"""Tiny configurations of model families, whose windows, chunks and original lengths LONGEST tokens pass."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformers import CONFIG_MAPPING, PretrainedConfig

VOCABULARY, CONTEXT = 40, 64
LONGEST = 40  # tokens of a sequence that is probed
SPAN = 6  # of windows
BEYOND = 16  # of chunks and original lengths
DENSE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": CONTEXT, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**DENSE, "num_key_value_heads": 2}
SIZED = {**GROUPED, "head_dim": 8}
WINDOW = {"sliding_window": SPAN}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
FACTORS = [1.0, 1.5, 2.0, 4.0]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": FACTORS, "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": BEYOND, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": BEYOND, "rope_theta": 1e4,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
DELTA_RULE = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 2,
}  # fmt: skip
STATE_SPACE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
LLAMA4 = {
    **SIZED, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1,
    "attention_chunk_size": BEYOND, "interleave_moe_layer_step": 1, "num_hidden_layers": 4,
    "no_rope_layers": [1, 1, 1, 0], "attn_temperature_tuning": False,
}  # fmt: skip


class Family(NamedTuple):
    """A row of the table."""

    name: str  # of the models that people know
    model_type: str  # of transformers
    options: Mapping[str, Any]

    def config(self) -> PretrainedConfig:
        """The tiny one's."""
        return CONFIG_MAPPING[self.model_type](**self.options)


FAMILIES = (
    Family("Llama 2, TinyLlama", "llama", GROUPED),
    Family("Llama 3.1 to 3.3 (llama3 positions)", "llama", {**GROUPED, "rope_scaling": LLAMA3}),
    Family("Llama with yarn positions", "llama", {**GROUPED, "rope_scaling": YARN}),
    Family(
        "Llama with dynamic positions",
        "llama",
        {**GROUPED, "max_position_embeddings": BEYOND, "rope_scaling": DYNAMIC},
    ),
    Family("Mistral 7B v0.1 (window)", "mistral", {**SIZED, **WINDOW}),
    Family("Mistral Small, Nemo", "mistral", {**SIZED, "sliding_window": None}),
    Family("Ministral (mixed windows)", "ministral", {**SIZED, **WINDOW, **MIXED}),
    Family("Qwen 2, 2.5", "qwen2", GROUPED),
    Family(
        "Qwen 2, window in the upper layers", "qwen2",
        {**GROUPED, **WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    ),
    Family(
        "Qwen 2, a window that no layer uses", "qwen2",
        {**GROUPED, **WINDOW, "use_sliding_window": True, "max_window_layers": 2},
    ),
    Family("Qwen 3", "qwen3", {**SIZED, "tie_word_embeddings": True}),
    Family("Gemma", "gemma", SIZED),
    Family("Gemma 2 (windows, capped scores)", "gemma2", {**SIZED, **WINDOW, "attn_logit_softcapping": 3.0}),
    Family("Gemma 3 (windows)", "gemma3_text", {**SIZED, **WINDOW, **MIXED}),
    Family("Phi 1, 2", "phi", DENSE),
    Family("Phi 3, Phi 4 (window)", "phi3", {**GROUPED, **WINDOW}),
    Family(
        "Phi 3.5, Phi 4 mini (longrope)", "phi3",
        {**GROUPED, "original_max_position_embeddings": BEYOND, "rope_scaling": LONGROPE},
    ),
    Family(
        "GPT-2", "gpt2",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    ),
    Family("Pythia, GPT-NeoX", "gpt_neox", DENSE),
    Family(
        "OPT", "opt",
        {**{k: v for k, v in DENSE.items() if k != "intermediate_size"}, "ffn_dim": 48,
         "word_embed_proj_dim": 32},
    ),
    Family("OLMo", "olmo", GROUPED),
    Family("OLMo 2", "olmo2", GROUPED),
    Family("OLMo 3 (windows)", "olmo3", {**GROUPED, **WINDOW}),
    Family("SmolLM 3", "smollm3", {**GROUPED, "no_rope_layers": [1, 0]}),
    Family("StarCoder 2 (window)", "starcoder2", {**GROUPED, **WINDOW}),
    Family("Granite 3", "granite", GROUPED),
    Family("Command R", "cohere", GROUPED),
    Family("Command R7B, Command A (windows)", "cohere2", {**GROUPED, **WINDOW, **MIXED}),
    Family("GLM 4 (2024)", "glm", SIZED),
    Family("GLM 4 (0414)", "glm4", SIZED),
    Family("Helium", "helium", SIZED),
    Family("Ernie 4.5", "ernie4_5", SIZED),
    Family("EXAONE 4 (windows)", "exaone4", {**GROUPED, **WINDOW, **MIXED}),
    Family("Seed-OSS", "seed_oss", SIZED),
    Family("Hunyuan dense", "hunyuan_v1_dense", SIZED),
    Family("Arcee (AFM)", "arcee", GROUPED),
    Family("Apertus", "apertus", GROUPED),
    Family("Nemotron, Minitron", "nemotron", GROUPED),
    Family("StableLM", "stablelm", GROUPED),
    Family("Bloom", "bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Family("Falcon", "falcon", DENSE),
    Family("MPT", "mpt", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4}),
    Family("gpt-oss (sinks, windows, experts)", "gpt_oss",
           {**SIZED, **WINDOW, **MIXED, "num_local_experts": 2, "num_experts_per_tok": 1}),
    Family("Llama 4 (chunks, experts)", "llama4_text", LLAMA4),
    Family("Qwen 2 MoE", "qwen2_moe", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16}),
    Family("Qwen 3 MoE", "qwen3_moe", {**SIZED, **EXPERTS}),
    Family("Mixtral", "mixtral", {**GROUPED, "num_local_experts": 4}),
    Family("OLMoE", "olmoe", {**GROUPED, **EXPERTS}),
    Family("Granite MoE", "granitemoe", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("DeepSeek V3, R1, Kimi K2 (latent attention, experts)", "deepseek_v3", {**DENSE, **LATENT}),
    Family(
        "GLM 4.5 (experts)", "glm4_moe",
        {**SIZED, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
         "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    Family("Qwen 3 Next (linear attention, experts)", "qwen3_next",
           {**SIZED, **EXPERTS, **DELTA_RULE, **LINEAR, "shared_expert_intermediate_size": 16}),
    Family("Qwen 3.5 (linear attention)", "qwen3_5_text", {**SIZED, **DELTA_RULE, **LINEAR}),
    Family("LFM 2 (convolutions)", "lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"]}),
    Family("Mamba", "mamba", STATE_SPACE),
    Family("Mamba 2", "mamba2", {**STATE_SPACE, "num_heads": 8, "head_dim": 8, "n_groups": 1}),
    Family("Jamba (state space, experts)", "jamba",
           {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
            "use_mamba_kernels": False, "expert_layer_period": 2, "expert_layer_offset": 1,
            "mamba_d_state": 4}),
    Family("Falcon H1 (state space)", "falcon_h1",
           {**SIZED, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4}),
)  # fmt: skip
