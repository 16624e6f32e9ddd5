"""The reward `model`: one output per response, and no head with two."""

import json
import sys
from pathlib import Path

import pytest

from controller.check.named_rewards import named_problems
from protocol.errors import ConfigError
from protocol.rewards.classifier import output_problem
from protocol.rewards.kinds import ModelReward
from workers.reward.kinds.interface import Place

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
