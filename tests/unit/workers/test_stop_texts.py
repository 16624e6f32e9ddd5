"""Strings that end a response, over tokens, interruptions and the least length."""

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from examples.ledger_task import make_untrained_model
from protocol.errors import ConfigError
from protocol.settings import SamplingSettings
from tests.support.engine_answers import answers, settings
from workers.engines.interface import Generation
from workers.engines.stop_texts import StopTexts, stop_texts
from workers.rollout.worker import make_engine


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("text-model") / "model"
    make_untrained_model(str(path), seed=0, progress=lambda *_: None)
    return str(path)


def letters():
    """A tokenizer of pieces, so that a string may begin in one and end in another."""
    pieces = ["<unk>", "a", "b", "</", "answer", ">", ">y", "é"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    from tokenizers import decoders

    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")


@pytest.mark.parametrize(
    ("tokens", "is_end"),
    [
        ([1, 3, 4, 5], True),
        ([1, 3, 4], False),
        ([3, 4, 6], True),
        ([3, 1, 4, 5], False),
        ([], False),
        ([1] * 50 + [3, 4, 5], True),
    ],
)
def test_a_string_is_found_across_tokens_when_its_last_one_comes(tokens, is_end):
    sampling = SamplingSettings(stop=("never", "</answer>"))
    assert StopTexts(letters()).ends(tokens, sampling) is is_end


def test_below_the_least_length_none_is_looked_for():
    texts, sampling = StopTexts(letters()), SamplingSettings(stop=("a",), min_tokens=3)
    assert [texts.ends([1] * count, sampling) for count in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("stop", "tokens", "end"),
    [
        ("a", [1, 2, 2, 2, 2], None),
        ("a", [2, 1, 2, 2, 1, 2], 5),
        ("</answer>", [3, 4, 5, 2, 2], None),
        ("</answer>", [3, 4, 5, 3, 4, 6], 6),
        ("</answer>", [2, 3, 4, 5], 4),
        ("aa", [1, 1, 1, 1], 4),
        ("aa", [1, 1, 2, 1], None),
    ],
)
@pytest.mark.parametrize("before", [0, 40])
def test_a_string_that_was_complete_below_the_least_length_ends_nothing_later(stop, tokens, end, before):
    texts, sampling = StopTexts(letters()), SamplingSettings(stop=(stop,), min_tokens=before + 4)
    response = [7] * before + tokens
    ends = [count for count in range(len(response) + 1) if texts.ends(response[:count], sampling)]
    assert ends[:1] == ([] if end is None else [before + end])


def test_a_token_that_completes_a_character_completes_the_string_that_it_ends():
    class Bytes:
        def decode(self, token_ids, *, clean_up_tokenization_spaces):
            return bytes(token_ids).decode(errors="replace")

    texts, tokens = StopTexts(Bytes()), list("a字b字".encode())
    for least, end in ((0, 4), (5, 8)):
        sampling = SamplingSettings(stop=("字",), min_tokens=least)
        ends = [count for count in range(9) if texts.ends(tokens[:count], sampling)]
        assert ends[0] == end


def test_an_engine_ends_a_response_at_the_first_string_wherever_it_was_interrupted(tmp_path, directory):
    plain = settings(str(tmp_path), dtype="float32", forward="float32")
    added = [Generation((0, member, 0), [1, 2, 3], [], 60, member) for member in range(8)]
    whole = [[item.token for item in sampled] for sampled in answers(plain, directory, added)]
    decode = AutoTokenizer.from_pretrained(directory).decode
    stop = decode(whole[0][10:12])
    assert stop.strip(), "an empty string would be found anywhere"
    chosen = settings(str(tmp_path), dtype="float32", forward="float32", stop=(stop,))
    found = answers(chosen, directory, added)
    for tokens, sampled in zip(whole, found, strict=True):
        expected = next(
            (count for count in range(1, len(tokens) + 1) if stop in decode(tokens[:count])), len(tokens)
        )
        assert [item.token for item in sampled] == tokens[:expected]
        assert sampled[-1].ending == ("stop" if stop in decode(tokens[:expected]) else sampled[-1].ending)
    assert sum(sampled[-1].ending == "stop" and len(sampled) < 60 for sampled in found) >= 1
    cut = len(found[0]) - 1
    engine = make_engine(chosen, directory)
    engine.add(Generation((0, 0, 1), [1, 2, 3], whole[0][:cut], 60 - cut, 0))
    [last] = engine.step()
    assert (last.token, last.ending) == (whole[0][cut], "stop")
    assert not engine.is_busy()


def test_an_evaluation_has_strings_of_its_own(tmp_path, directory):
    chosen = settings(str(tmp_path), dtype="float32", forward="float32")
    own = SamplingSettings(stop=("e", "a", "1", "0", " "))
    engine = make_engine(chosen.model_copy(update={"evaluation_sampling": own}), directory)
    for member in range(4):
        engine.add(Generation((0, member, 0), [1, 2, 3], [], 60, member, own if member % 2 else None))
    lengths = {}
    while engine.is_busy():
        for item in engine.step():
            lengths[item.key[1]] = lengths.get(item.key[1], 0) + 1
    assert max(lengths[1], lengths[3]) < max(lengths[0], lengths[2])


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    assert stop_texts(str(tmp_path), SamplingSettings()) is None
    with pytest.raises(ConfigError, match="has no tokenizer to find strings with"):
        stop_texts(str(tmp_path), SamplingSettings(), SamplingSettings(stop=("x",)))
