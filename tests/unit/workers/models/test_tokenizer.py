"""Tokens become the text that was sampled."""

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.models.tokenizer import load_tokenizer

TEXTS = ["return ' '.join(x)", "a + ' ' + b", "print('a , b . c ? d !')", "it 's , do n't"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cleans", [True, False])
def test_no_space_is_taken_out_of_what_was_sampled(tmp_path, cleans, text):
    made = make_tokenizer()
    made.clean_up_tokenization_spaces = cleans  # as in tokenizer_config.json of Llama 3
    made.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
