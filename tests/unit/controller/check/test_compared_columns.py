"""How far a reward was compared with the data, as `check` says it."""

import json

import pytest

from controller.check.data import samples
from controller.check.reward import reward_remarks
from controller.config.models import Config

MADE = "def prompts(*, seed):\n    yield {'prompt': '1+1', 'answer': '2'}\n"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What is noted of a reward: a name, or the source of `score`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1", "answer": "2"}) + "\n")

    def ask(reward, path, **sections):
        if reward.startswith("def "):
            (tmp_path / "mine.py").write_text(reward)
            reward = "mine.py:score"
        tree = {"data": {"path": path}, "reward": {"function": reward}, **sections}
        config = Config.model_validate(tree, strict=False)
        ((level, _, text),) = reward_remarks(config, samples(config), is_thorough=True)
        assert level == "note"
        return text.partition("; it was not called")[0]

    return ask


WANTS = "def score(completion, answer, row):\n    return 1.0\n"
PLAIN = "def score(prompt, completion, ending, **columns):\n    return 1.0\n"
FITTING = "def score(completion, answer):\n    return 1.0\n"
MADE_ELSEWHERE = "def make():\n    return max\n\n\nscore = make()\n"


@pytest.mark.parametrize(
    ("reward", "path", "text"),
    [
        (WANTS, "made.py:prompts", "its signature needs `answer`, `row`, not compared with data: no"),
        ("exact", "made.py:prompts", "exact needs `answer`, not compared with data: no row"),
        (PLAIN, "made.py:prompts", "its signature fits the data"),
        (FITTING, "rows.jsonl", "its signature fits the data"),
        ("exact", "rows.jsonl", "exact fits the data"),
        (MADE_ELSEWHERE, "rows.jsonl", "its signature cannot be read without importing it"),
    ],
)
def test_a_column_that_no_row_was_seen_with_is_not_said_to_fit(told, reward, path, text):
    assert told(reward, path).startswith(text)


def test_held_out_rows_that_are_known_do_not_stand_for_those_that_are_trained(told):
    held_out = {"every_steps": 1, "data": {"here": {"path": "rows.jsonl"}}}
    assert "not compared with data: no row" in told(FITTING, "made.py:prompts", evaluation=held_out)


@pytest.mark.parametrize(
    ("some", "meant"), [(["4", 5], '5, "5"'), ([True], 'true, "True"'), ([None], 'null, ""'), (["4"], "")]
)
def test_a_number_that_a_filter_wants_of_a_csv_is_said_to_be_text_there(tmp_path, some, meant):
    (tmp_path / "rows.csv").write_text("prompt,answer,level\na,1,4\nb,2,5\n")
    data = {"path": str(tmp_path / "rows.csv"), "where": {"level": some}}
    (sample,) = samples(Config.model_validate({"data": data}))
    notes = [text for _, key, text in sample.remarks if key == "data.where.level"]
    has, _, write = meant.partition(", ")
    why = "which keeps no row: all values of CSV and TSV are text. Write it as the file has it, such as"
    told = f"has {has}, {why} {write}."
    assert notes == [told] * bool(meant)
