"""Columns that lie in mappings of a row, and rows that are not known: `check` does what a run does."""

import json

import pytest

from controller.check.data import samples
from controller.check.reward import reward_remarks
from controller.config.models import Config


@pytest.fixture
def looked_at(tmp_path, monkeypatch):
    """A sample of a file with one row."""
    monkeypatch.chdir(tmp_path)

    def look(row, *, algorithm="grpo", **data):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        tree = {"data": {"path": "rows.jsonl", **data}, "trainer": {"algorithm": algorithm}}
        (sample,) = samples(Config.model_validate(tree, strict=False))
        return sample

    return look


def test_a_template_and_a_filter_may_look_into_a_column_of_another_name(looked_at):
    row = {"extra_info": {"question": "1+1", "split": "train"}}
    names = {"columns": {"info": "extra_info"}, "prompt": "Say {info.question}."}
    sample = looked_at(row, **names, where={"info.split": ["train"]})
    assert sample.remarks == []
    assert [row["prompt"] for row in sample.rows] == ["Say 1+1."]
    ((level, key, text),) = looked_at(row, **names, where={"info.kind": ["train"]}).remarks
    assert (level, key) == ("error", "data.columns.info.kind")
    assert "has no column 'info.kind'" in text


def test_a_conversation_in_a_mapping_is_prompt_and_response_in_one(looked_at):
    talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    sample = looked_at({"of": {"talk": talk}}, algorithm="sft", columns={"messages": "of.talk"})
    assert sample.remarks == []
    assert [row["response"] for row in sample.rows] == ["2"]


def called(tmp_path, path, *, when=None, **data):
    """What is said of a reward that is called on the first row of a source."""
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return answer or 0\n\n\n"
        "def prompts(*, seed):\n    yield {'prompt': '1+1', 'of': {'sum': 2.0, 'none': None}}\n"
    )
    entry = {"function": "mine.py:score"}
    tree = {
        "data": {"path": path, **data},
        "reward": {"rewards": [entry | {"when": when}]} if when else entry,
    }
    config = Config.model_validate(tree, strict=False)
    return [*reward_remarks(config, samples(config), calls=True)]


def test_a_reward_is_called_with_a_column_that_lies_in_a_mapping(tmp_path, monkeypatch, answered_here):
    monkeypatch.chdir(tmp_path)
    ((level, key, text),) = called(tmp_path, "mine.py:prompts", columns={"answer": "of.sum"})
    assert (level, key) == ("note", "reward.function")
    assert text.endswith("it gave 2, 2.")
    ((level, _, text),) = called(tmp_path, "mine.py:prompts", columns={"answer": "of.none"})
    assert (level, text[-13:]) == ("note", "it gave 0, 0.")
    ((level, _, text),) = called(tmp_path, "mine.py:prompts", columns={"answer": "of.gold"})
    assert level == "error"
    assert "no column 'of.gold', which `data.columns` names; it has ['of', 'prompt']" in text


def test_a_reward_is_not_blamed_for_a_source_that_has_no_rows(tmp_path, monkeypatch, answered_here):
    monkeypatch.chdir(tmp_path)
    remarks = called(tmp_path, "mine.py:prompts", when={"of": 1})
    text = "it was not called on a row of mine.py:prompts: none is known before the run."
    assert remarks == [("note", "reward.rewards.0", text)]
    assert called(tmp_path, "gone.jsonl") == []
