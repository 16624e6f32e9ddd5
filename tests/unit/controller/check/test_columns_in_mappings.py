"""Columns that lie in mappings of a row: `check` finds them where a run does."""

import json

import pytest

from controller.check.data import samples
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
