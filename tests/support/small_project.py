"""A folder as a user has it: a configuration, a reward, data, and a model with a tokenizer and no weights."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

ALPHABET = "0123456789+-= abcdefghijklmnopqrstuvwxyz<>:?"
CHAT_ROWS = '{"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}\n'
TEMPLATE = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% endfor %}"
CONFIGURATION = """\
model: {path: model}
data: {path: rows.jsonl}
reward: {function: rewards.py:score}
rollout: {instances: 1, group_size: 4, max_prompt_tokens: 16, max_response_tokens: 16}
trainer: {batch_groups: 8}
"""


def make_project(folder: Path, *, chat_template: str | None = None) -> None:
    """Write it; the tokenizer has one token for each character of ALPHABET."""
    (folder / "run.yaml").write_text(CONFIGURATION)
    (folder / "rewards.py").write_text(
        "def score(completion, answer):\n    return float(completion == answer)\n"
    )
    (folder / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 3)
    make_model(folder / "model", chat_template=chat_template)


def make_model(folder: Path, *, chat_template: str | None = None) -> None:
    """A model directory without weights of use."""
    folder.mkdir()
    shape = {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    shape |= {"head_dim": 32, "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(shape))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4000))
    vocabulary = {character: number for number, character in enumerate(ALPHABET)}
    vocabulary |= {"<eos>": len(vocabulary), "<unk>": len(vocabulary) + 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "unk_token": "<unk>"}
    about |= {} if chat_template is None else {"chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
