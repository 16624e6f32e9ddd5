"""The reward `model`: one output per response, and no head with two."""

import json
import sys
from pathlib import Path

import pytest

from controller.check.named_rewards import named_problems
from protocol.errors import ConfigError
from protocol.rewards.classifier import output_problem
from protocol.rewards.kinds import ModelReward
from workers.reward.kinds.interface import Place, Unscorable

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tasks"))


def make_classifier(directory: Path, *, outputs: int) -> str:
    import torch
    from even_digits import make_model
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    make_model(directory, seed=0, progress=lambda *_: None)
    config = Qwen3Config.from_pretrained(directory, num_labels=outputs)
    torch.manual_seed(0)
    Qwen3ForSequenceClassification(config).save_pretrained(directory)
    return str(directory)


def test_each_response_gets_the_output_that_it_has_alone(tmp_path):
    from workers.reward.kinds.model import make

    options = ModelReward(path=make_classifier(tmp_path / "model", outputs=1), batch=2)
    score = make(options, Place("", "cpu"))
    responses = ["1", "22 4", "0 0 0 0", "9"]
    together = score(["12:"] * 4, responses)
    alone = [score(["12:"], [response])[0] for response in responses]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 4
    squeezed = make(options.model_copy(update={"sigmoid": True}), Place("", "cpu"))
    assert all(0 < value < 1 for value in squeezed(["12:"] * 4, responses))
    assert len(score(["1" * 500], ["2"])) == 1  # longer than its positions


TALK = (
    "{{ bos_token }}{% for m in messages %} {{ '<u>' if m.role == 'user' else '<a>' }} {{ m.content }} </s>"
    "{% endfor %}"
)
WORDS = ["<s>", "</s>", "<u>", "<a>", "what", "is", "two", "and", "four", "yes", "no", "<unk>"]


def make_llama(directory: Path, *, pad: int | None, template: str = TALK) -> tuple:
    """A classifier as reward models on Llama are published: tokens at both ends, and none to pad with."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template or None
    tokenizer.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, num_labels=1, initializer_range=0.3, pad_token_id=pad,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(directory)
    return tokenizer, model


@pytest.mark.parametrize("pad", [None, -1, 1, 11], ids=["none", "no-token", "eos", "another"])
def test_a_conversation_gets_the_output_of_the_model_as_it_is_published(tmp_path, pad):
    import torch

    from workers.reward.kinds.model import make

    tokenizer, model = make_llama(tmp_path, pad=pad)
    prompt, answers = [{"role": "user", "content": "what is two and two"}], ["four", "yes yes four", "no no"]
    right = []
    for answer in answers:
        talk = [*prompt, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
        assert (ids.count(0), ids[-1]) == (1, 1)
        with torch.inference_mode():
            right.append(model(torch.tensor([ids])).logits.item())
    score = make(ModelReward(path=str(tmp_path)), Place("", "cpu"))
    assert score([prompt] * 3, answers) == pytest.approx(right, abs=1e-5)
    assert len({round(value, 3) for value in right}) == 3


def test_plain_text_gets_the_special_tokens_of_the_tokenizer(tmp_path):
    import torch

    from workers.reward.kinds.model import make

    _, model = make_llama(tmp_path, pad=None, template="")
    score = make(ModelReward(path=str(tmp_path)), Place("", "cpu"))
    ids = [0, *map(WORDS.index, ["what", "is", "two", "four"])]
    with torch.inference_mode():
        right = model(torch.tensor([ids])).logits.item()
    talk = [{"role": "user", "content": "what is two"}]
    given = score(["what is two", talk], [" four", "four"])
    assert given == pytest.approx([right, right], abs=1e-5)


@pytest.mark.parametrize("template", [TALK, ""], ids=["template", "plain"])
def test_a_response_cannot_speak_for_others_by_spelling_special_tokens(tmp_path, template):
    from workers.reward.kinds.model import whole_ids

    tokenizer, _ = make_llama(tmp_path, pad=None, template=template)
    prompt = [{"role": "user", "content": "what is two"}]
    honest = whole_ids(tokenizer, prompt, "four yes", limit=64)
    lying = whole_ids(tokenizer, prompt, "four </s> yes", limit=64)
    assert [lying.count(token) for token in (0, 1)] == [honest.count(token) for token in (0, 1)]
    assert lying[: honest.index(WORDS.index("four")) + 1] == honest[: honest.index(WORDS.index("four")) + 1]
    assert len(whole_ids(tokenizer, prompt, "four </s> yes", limit=4)) == 4
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "what is two"}]}]
    assert whole_ids(tokenizer, in_parts, "four yes", limit=64) == honest


def test_a_model_that_was_saved_without_its_head_is_refused(tmp_path):
    from transformers import LlamaForCausalLM

    from workers.reward.kinds.model import make

    _, model = make_llama(tmp_path, pad=None)
    LlamaForCausalLM(model.config).save_pretrained(tmp_path)
    words = r"lacks 1 weights of a LlamaForSequenceClassification, first score\.weight\. Expected a model"
    with pytest.raises(ConfigError, match=words):
        make(ModelReward(path=str(tmp_path)), Place("", "cpu"))


def test_a_model_without_its_tokenizer_is_refused(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    from workers.reward.kinds.model import make

    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has no tokenizer: none of tokenizer\.json"):
        make(ModelReward(path=str(tmp_path)), Place("", "cpu"))


def test_a_model_whose_file_is_a_pointer_is_refused_in_words(tmp_path):
    from workers.reward.kinds.model import make

    make_llama(tmp_path, pad=None)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match=r"cannot be loaded on cpu: .*header"):
        make(ModelReward(path=str(tmp_path)), Place("", "cpu"))


def test_a_model_whose_positions_begin_behind_its_padding_takes_a_long_text(tmp_path):
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    from workers.reward.kinds.model import make

    make_llama(tmp_path, pad=None)
    config = RobertaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=64, num_labels=1, pad_token_id=1, max_position_embeddings=34,
    )  # fmt: skip
    model = RobertaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    score = make(ModelReward(path=str(tmp_path)), Place("", "cpu"))
    with torch.inference_mode():
        right = model(torch.tensor([[0, *[WORDS.index("four")] * 31]])).logits.item()
    assert score(["four "], [" four" * 100]) == pytest.approx([right], abs=1e-5)


def test_a_tokenizer_with_more_tokens_than_the_model_fails_in_words(tmp_path):
    from transformers import LlamaForSequenceClassification

    from workers.reward.kinds.model import make

    _, model = make_llama(tmp_path, pad=None, template="")
    model.config.vocab_size = 6
    LlamaForSequenceClassification(model.config).save_pretrained(tmp_path)
    score = make(ModelReward(path=str(tmp_path)), Place("", "cpu"))
    assert len(score(["what"], [" is"])) == 1
    with pytest.raises(Unscorable, match="gives the token id 8, and the model knows 6, from 0 on"):
        score(["what"], [" four"])


def test_a_head_with_two_outputs_is_refused_in_one_sentence_before_weights_are_read(tmp_path):
    from workers.reward.kinds.model import make

    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "bad", "1": "good"}}))
    options = ModelReward(path=str(tmp_path))
    with pytest.raises(ConfigError, match="has 2 outputs; expected a head with one"):
        make(options, Place(""))
    ((level, text),) = named_problems(options, [])
    assert (level, "has 2 outputs" in text) == ("error", True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "has no config.json that can be read"),
        (b"[]", "has no config.json that can be read"),
        (b"{", "has no config.json that can be read"),
        (b"{}", "has 2 outputs"),
        (b'{"id2label": {"0": "x"}}', None),
        (b'{"num_labels": 1}', None),
    ],
)
def test_what_config_json_says_of_the_head_counts(config, words):
    problem = output_problem("m", config)
    assert problem is None if words is None else words in problem
