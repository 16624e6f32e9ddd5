"""A tokenizer of characters with a ChatML template, as Qwen's is in small; with thinking, like Qwen 3's."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
THOUGHT{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
KEEPS = "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
STRIPS = KEEPS.replace("{% if message", "{% if loop.last and message")
THINKING = {"keeps": KEEPS, "strips": STRIPS, "none": ""}


def make_tokenizer(thinking: str = "keeps") -> PreTrainedTokenizerFast:
    """One token per character, and `<|im_start|>`, `<|im_end|>` as special ones."""
    characters = [chr(code) for code in (10, *range(32, 127))]
    vocabulary = {character: index for index, character in enumerate([*characters, "<unk>"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", unk_token="<unk>",
        chat_template=CHATML.replace("THOUGHT", THINKING[thinking]), clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|im_start|>")]})
    return tokenizer
