"""The names by which `agent.renderer` asks for what turns messages into tokens.

Invariant: pure; the library `renderers` is not imported to know what it has.
"""

OURS = ("template", "plain")
LIBRARY = (
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "hy3",
    "inkling",
    "kimi-k2",
    "kimi-k2.5",
    "laguna-m.1",
    "laguna-s-2.1",
    "laguna-xs-2.1",
    "laguna-xs.2",
    "llama-3",
    "minimax-m2",
    "nemotron-3",
    "nemotron-3-ultra",
    "nemotron-3.5",
    "prime-qwen3",
    "qwen3",
    "qwen3-vl",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
)
"""Those of the library `renderers` 0.1 that need nothing but the tokenizer."""
LEFT_OUT = {
    "auto": "goes by a model's name on the Hub; name the renderer itself",
    "custom": "names a class; give `agent.renderer` the import path of a renderer of your own",
    "default": "renders the tokenizer's chat template whole for each turn; use `template`, which goes on",
    "gpt-oss": "downloads a vocabulary when it is made, and encodes past the tokenizer; use `template`",
}
"""Further names of the library, and why they are none here."""
RENDERERS = (*OURS, *LIBRARY)
EXTRA = "renderers"
