"""Rewards by name in a configuration: what is taken, and what is refused in words, with its place."""

import json

import pytest

from controller.check.problems import check
from controller.config.load import load_config
from protocol.errors import ConfigError
from protocol.rewards.kinds import KINDS, FunctionReward, entry_of, find


def config_with(tmp_path, reward: str, *, rows=({"prompt": "?", "answer": "1"},)):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def score(completion):\n    return 1.0\n")
    file = tmp_path / "run.yaml"
    file.write_text(f"data:\n  path: {tmp_path}/rows.jsonl\nreward:\n{reward}")
    return load_config(file)


def remarks(tmp_path, reward, rows):
    found = check(config_with(tmp_path, reward, rows=rows))
    return [(one.level, one.field, one.text) for one in found if one.field.startswith("reward")]


def test_a_list_of_rewards_travels_to_workers_and_keeps_its_options(tmp_path):
    config = config_with(
        tmp_path,
        "  rewards:\n"
        "    - {kind: exact, pattern: 'is (.*)', weight: 2, when: {data_source: [a, b]}}\n"
        "    - {function: 'mine.py:score', name: own}\n",
    )
    exact, own = config.reward.entries
    assert (exact.weight, exact.label, own.label) == (2.0, "exact", "own")
    assert own.function == f"{tmp_path}/mine.py:score"  # found beside the file
    assert config.reward_names == ("exact", "own")
    again = type(config.reward).model_validate_json(config.reward.model_dump_json(), strict=False)
    assert again.entries == config.reward.entries


def test_a_name_alone_is_a_reward_with_its_defaults(tmp_path):
    config = config_with(tmp_path, "  function: exact\n")
    (only,) = config.reward.entries
    assert only == KINDS["exact"].options()
    assert entry_of("a.py:f") == FunctionReward(function="a.py:f")
    assert not [one for one in check(config) if one.field.startswith("reward") and one.level == "error"]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("  rewards: [{kind: mth}]\n", "reward.rewards.0 (line 4): {'kind': 'mth'} is refused; expected a"),
        ("  rewards: [{kind: exact, anser: x}]\n", "rewards.0.anser (line 4): there is no such key. Did"),
        ("  rewards: [{kind: exact, pattern: '('}]\n", "is no regular expression: missing )"),
        ("  rewards: [{kind: exact, name: mean}]\n", "reward.rewards.0.name"),
        ("  rewards: [{weight: 2}]\n", "reward.rewards.0.function (line 4): is missing; the reward"),
        ("  rewards: [{kind: exact}, {kind: exact}]\n", "has two rewards with the name exact"),
        ("  rewards: [{kind: exact, weight: 0}]\n", "has the weight 0 everywhere"),
        ("  function: exact\n  rewards: [{kind: exact}]\n", "Give one of the two"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(tmp_path, reward, words):
    with pytest.raises(ConfigError) as raised:
        config_with(tmp_path, reward)
    assert words in str(raised.value)


def test_check_looks_for_columns_in_the_rows_that_a_reward_is_for(tmp_path):
    rewards = (
        "  rewards:\n    - {kind: exact, answer: gold, when: {source: a}}\n    - {kind: exact, name: b}\n"
    )
    lacking = [{"prompt": "?", "answer": "1", "source": "a"}]
    ((level, field, text), *rest) = remarks(tmp_path, rewards, lacking)
    assert (level, field, rest) == ("error", "reward.rewards.0", [])
    assert "needs the column `gold`, and the first row has only prompt, answer, source" in text
    assert remarks(tmp_path, rewards, [{"prompt": "?", "answer": "1", "source": "a", "gold": "1"}]) == []


def test_check_names_rows_that_no_reward_is_for(tmp_path):
    rewards = "  rewards: [{kind: exact, when: {source: a}}]\n"
    row = {"prompt": "?", "answer": "1"}
    some = remarks(tmp_path, rewards, [{**row, "source": "a"}, {**row, "source": "b"}])
    assert some[-1][:2] == ("note", "reward.rewards")
    assert "no reward is for 1 of the first 2 rows" in some[-1][2]
    none = remarks(tmp_path, rewards, [{**row, "source": "b"}])
    assert [(level, field) for level, field, _ in none] == [
        ("error", "reward.rewards"),
        ("note", "reward.rewards.0.when"),
    ]


def test_a_judge_of_the_conversation_needs_no_column_for_it(tmp_path):
    judge = "{kind: judge, base_url: 'http://here/v1', model: m, prompt: 'How good?\\n{messages}\\n%s'}"
    chat = [{"prompt": [{"role": "user", "content": "?"}]}]
    assert remarks(tmp_path, f"  rewards: [{judge % ''}]\n", chat) == []
    ((level, _, text),) = remarks(tmp_path, f"  rewards: [{judge % ''}]\n", [{"prompt": "?"}])
    assert level == "error"
    assert "needs the column `messages`" in text  # of a text there is no conversation
    rewards = f"  rewards: [{judge % '{turns}'}]\nagent:\n  function: mine.py:score\n"
    assert not [one for one in remarks(tmp_path, rewards, [{"prompt": "?"}]) if "column" in one[2]]


def test_rows_of_several_sources_have_the_column_source_as_in_a_run(tmp_path):
    (tmp_path / "mine.py").write_text("def score(completion, source, level):\n    return 1.0\n")
    (tmp_path / "easy.jsonl").write_text('{"prompt": "?"}\n')
    (tmp_path / "hard.jsonl").write_text('{"prompt": "?", "level": 3}\n')
    file = tmp_path / "run.yaml"
    file.write_text(
        f"data: {{sources: [{{path: {tmp_path}/easy.jsonl}}, {{path: {tmp_path}/hard.jsonl}}]}}\n"
        "reward: {rewards: [{function: 'mine.py:score', when: {source: hard}},\n"
        "  {kind: judge, base_url: 'http://127.0.0.1/v1', model: m, when: {source: easy}}]}\n"
    )
    found = [one for one in check(load_config(file), is_thorough=True) if one.field.startswith("reward")]
    assert [one.level for one in found] == ["note", "note"]
    assert all("fits the data" in one.text for one in found)


def test_a_column_may_be_a_key_of_a_mapping():
    row = {"reward_model": {"ground_truth": "7", "style": {"a": 1}}, "a.b": 2}
    assert find(row, "reward_model.ground_truth") == "7"
    assert find(row, "reward_model.style.a") == 1
    assert find(row, "a.b") == 2
    assert find(row, "reward_model.nothing") is None
    assert find(row, "nothing.at.all") is None
