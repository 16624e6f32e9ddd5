"""Kept samples as text."""

import json

import numpy as np

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.durability.sample_records import KeptSample
from controller.history.sample_index import lines_of_numbers
from controller.history.sample_text import as_text, find_decoder, lines_of, texts_of
from tests.support.answered_run import AnsweredRun

LETTERS = {1: b"a", 2: b"bc", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b" "}


def decode(ids):
    return b"".join(LETTERS[id] for id in ids).decode(errors="replace")


def sample(**facts):
    items = [
        {"group": 7, "member": 0, "reward": 1.0, "outcome": 0.5, "ending": "stop",
         "segments": [[1, 4, 2], [2, 5, 1]]},
        {"group": 7, "member": 2, "reward": 0.0, "outcome": -0.5, "ending": "length",
         "segments": [[1, 4, 2]]},
    ]  # fmt: skip
    return KeptSample(
        6, 7, {"why": "oldest", "items": items, "parts": {"format": [0.25, 0.75]}} | facts,
        json.dumps({"q": 1}).encode(),
        np.array([1, 5], "<i4").tobytes(),
        np.array([1, 2, 5, 3, 4], "<i4").tobytes(),
        np.array([-0.5, -1, -1.5, -2, -2.5], "<f4").tobytes(),
    )  # fmt: skip


def test_tokens_joined_are_the_text_and_a_split_character_is_told_once():
    ids = [1, 3, 4, 2, 5, 1]
    assert texts_of(ids, decode) == ["a", "", "é", "bc", " ", "a"]
    assert "".join(texts_of([1, 3], decode)) == decode([1, 3])  # its end is missing


def test_a_run_far_from_its_model_has_the_tokenizer_of_its_newest_checkpoint(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    AnsweredRun(tmp_path / "run.db").to_the_end()
    for version, word in ((4, "old"), (20, "new"), (30, "cut off")):
        folder = tmp_path / "checkpoints" / f"step_{version}"
        folder.mkdir(parents=True)
        Tokenizer(WordLevel({word: 0}, unk_token=word)).save(str(folder / "tokenizer.json"))
        if version < 30:
            (folder / ".complete").touch()
    with Recording(tmp_path) as recording:
        found = find_decoder(recording)
    assert found is not None
    assert found([0]) == "new"


def test_every_token_has_the_version_and_logprob_of_its_segment():
    group = as_text(sample(), decode)
    first, second = group.responses
    assert [(t.text, t.policy_version, t.logprob) for t in first.tokens] == [
        ("a", 4, -0.5), ("bc", 4, -1.0), (" ", 5, -1.5)
    ]  # fmt: skip
    assert [(t.text, t.policy_version) for t in second.tokens] == [("", 4), ("é", 4)]
    assert first.policy_versions == [4, 5]
    assert first.parts == {"format": 0.25}
    assert second.parts == {"format": 0.75}
    told = as_text(sample(parts={"format": [None, 0.75]}), decode).responses
    assert [one.parts for one in told] == [{}, {"format": 0.75}], "the first was not scored"
    assert group.staleness == 1  # version 6 was made of version 5, and a token is of version 4
    assert group.prompt == "a "


def test_given_tokens_of_an_agent_have_neither_version_nor_logprob():
    items = [
        {"group": 7, "member": 0, "reward": 1.0, "outcome": 0.5, "ending": "stop",
         "segments": [[1, -1, 2], [1, 4, 1], [1, -1, 1], [2, 5, 1]]},
    ]  # fmt: skip
    kept = sample(items=items, parts={})._replace(
        prompt=b"", tokens=np.array([1, 2, 5, 1, 2], "<i4").tobytes(),
        logprobs=np.array([-0.5, -1], "<f4").tobytes(),
    )  # fmt: skip
    group = as_text(kept, decode)
    (one,) = group.responses
    assert [token.policy_version for token in one.tokens] == [None, None, 4, None, 5]
    assert [token.logprob for token in one.tokens] == [None, None, -0.5, None, -1.0]
    assert one.text == "abc abc"
    assert one.policy_versions == [4, 5]
    assert group.staleness == 1
    assert group.prompt == ""
    (line,) = lines_of(group)
    assert line["logprobs"] == [None, None, -0.5, None, -1.0]


def test_the_advantages_of_turns_are_those_of_their_tokens_and_their_mean_that_of_the_response():
    """Rewards of ends that are all equal give the episode an advantage of 0, which trains nothing."""
    items = [
        {"group": 7, "member": 0, "reward": 1.0, "outcome": 0.0, "ending": "stop",
         "segments": [[1, -1, 1], [2, 4, 1], [2, 5, 2], [3, -1, 1], [4, 5, 1]],
         "outcomes": [0.0, 1.0, 1.0, 0.0, -0.5]},
    ]  # fmt: skip
    kept = sample(items=items, parts={})._replace(
        prompt=b"", tokens=np.array([1, 2, 5, 1, 2, 1], "<i4").tobytes(),
        logprobs=np.array([-0.5] * 4, "<f4").tobytes(),
    )  # fmt: skip
    (one,) = as_text(kept, decode).responses
    assert [token.advantage for token in one.tokens] == [None, 1.0, 1.0, 1.0, None, -0.5]
    assert one.advantage == 0.625
    (line,) = lines_of(as_text(kept, decode))
    assert line["advantages"] == [None, 1.0, 1.0, 1.0, None, -0.5]
    assert lines_of_numbers(kept, {})["advantage"].tolist() == [0.625]
    (held_out,) = as_text(kept._replace(group=FIRST_EVALUATION_GROUP), decode).responses
    assert [token.advantage for token in held_out.tokens] == [None] * 6


def test_a_line_of_jsonl_stands_alone():
    lines = list(lines_of(as_text(sample(), decode)))
    assert [json.loads(json.dumps(line))["member"] for line in lines] == [0, 2]
    assert lines[0]["response"] == "abc "
    assert lines[0]["token_versions"] == [4, 4, 5]
    assert lines[0]["row"] == {"q": 1}
