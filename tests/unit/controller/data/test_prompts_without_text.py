"""A row that cannot be used is left out and named; the rows around it are read as ever."""

import json

import pytest

from controller.check.problems import check
from controller.config.models import Config
from controller.data.held_out import read_held_out
from controller.data.prompts import MAX_UNUSABLE, PromptSource
from protocol.errors import ConfigError

HALF = '{"prompt": "what is \\ud83d"}\n'


def config(path, **data):
    return Config.model_validate({"data": {"path": str(path), "shuffle": False, **data}})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(
        '{"prompt": "a"}\n' + HALF + '{"prompt": "b", "x": ["\\uDFFF"]}\n{"prompt": "\\ud83d\\ude00"}\n'
    )
    return path


def test_it_is_left_out_and_named_by_its_line_once(file):
    told = []
    source = PromptSource(config(file, epochs=3), on_refused=told.append)
    rows = [json.loads(row)["prompt"] for row in source.read(99)]
    assert rows == ["a", "\U0001f600"] * 3
    assert source.is_end
    assert len(told) == 2
    assert f"{file}, line 2 has U+D83D in 'prompt'" in told[0]
    assert f"{file}, line 3 has U+DFFF in 'x'" in told[1]
    assert told[1].endswith("The row is left out, as 2 are so far.")


@pytest.mark.parametrize("odd", ['{"prompt": ""}', '{"prompt": null}', '{"prompt": "b", "x": NaN}'])
def test_one_row_that_cannot_be_used_deep_in_the_data_ends_no_run(tmp_path, odd):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a"}\n' * 300 + odd + '\n{"prompt": "c"}\n')
    told = []
    rows = PromptSource(config(path, epochs=1), on_refused=told.append).read(999)
    assert [json.loads(row)["prompt"] for row in rows] == ["a"] * 300 + ["c"]
    assert len(told) == 1
    assert f"{path}, line 301 " in told[0]
    assert ("'x'" if "NaN" in odd else "`prompt`") in told[0]


def test_as_many_rows_come_as_are_asked_for(file):
    source = PromptSource(config(file), on_refused=lambda text: None)
    assert [len(source.read(count)) for count in (1, 2, 3)] == [1, 2, 3]
    assert not source.is_end


def test_a_source_of_such_rows_alone_is_an_error(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(HALF * 3)
    told = []
    with pytest.raises(ConfigError, match="which is half of a character"):
        PromptSource(config(path), on_refused=told.append).read(1)
    assert len(told) == 3 < MAX_UNUSABLE


def test_held_out_prompts_are_all_used_or_refused(file):
    one = {"math": {"path": str(file)}}
    settings = Config.model_validate({"evaluation": {"every_steps": 1, "data": one}})
    with pytest.raises(ConfigError, match=r"evaluation\.data\.math.*line 2 has U\+D83D"):
        read_held_out(settings)


def test_check_names_the_first(file):
    found = [finding for finding in check(config(file)) if "U+D83D" in finding.text]
    assert [(finding.level, finding.field) for finding in found] == [("note", "data.path")]
    assert f"{file}, line 2 has U+D83D in 'prompt'" in found[0].text


def test_a_file_that_is_replaced_or_taken_away_is_read_on(file):
    source = PromptSource(config(file), on_refused=lambda text: None)
    assert len(source.read(1)) == 1
    file.unlink()
    assert len(source.read(5)) == 5
