"""Rows, attempts and rewards of an evaluation without a run."""

import asyncio
import json

import pytest

from protocol.errors import RunError
from workers.evaluate.evaluator import _Evaluator
from workers.evaluate.played import Lost, Played
from workers.evaluate.rows_so_far import RowsSoFar
from workers.reward.mixture import Scored


class Player:
    """Gives rewards as the row says; a row without `rewards` fails."""

    async def play(self, number, sample, row):
        if "rewards" not in row:
            raise Lost("its environment is gone")
        reward = row["rewards"][sample]
        ending = "length" if reward == 0 else "stop"
        played = Played(reward, "q", [1], f"a{sample}", [2], ending, 5 + sample, 1, "text")
        return played._replace(forks=tuple(row.get("forks", ())))


class Mixture:
    """Scores each response 0.25, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    async def score(self, request, *, members):
        self.asked.append(request)
        return Scored((0.25,) * members, (("style", (0.5,) * members),))


def evaluate(row, mixture=None, transcripts=None, samples=2):
    async def run():
        so_far = RowsSoFar(9, print, lambda: 0.0)
        evaluator = _Evaluator(Player(), mixture, asyncio.Semaphore(4), transcripts, so_far)
        return await evaluator.row(3, row, samples=samples)

    return asyncio.run(run())


def test_attempts_with_rewards_of_their_own_need_no_reward_function():
    assert evaluate({"rewards": [1.0, 0.0]}) == {
        "rewards": [1.0, 0.0], "lengths": [5, 6], "parts": [], "cut": 1, "turns": [1, 1]
    }  # fmt: skip


def test_forks_of_all_attempts_are_told_together():
    assert evaluate({"rewards": [1.0, 0.0], "forks": ["edited"]})["forks"] == ["edited", "edited"]


def test_attempts_without_one_are_scored_and_others_keep_theirs():
    mixture = Mixture()
    found = evaluate({"rewards": [None, 1.0]}, mixture)
    assert found["rewards"] == [0.25, 1.0]
    assert found["parts"] == [("style", (0.5,))]
    ((number, row, prompt, ids, texts, tokens, endings),) = mixture.asked
    assert (number, json.loads(row), prompt, ids) == (3, {"rewards": [None, 1.0]}, "q", [1])
    assert (texts, tokens, endings) == (["a0"], [[2]], ["stop"]), "the function is asked for the other, too"


def test_a_row_counts_whole_or_not_at_all():
    assert evaluate({}) == {"failed": "its environment is gone"}
    assert "no `reward.function`" in evaluate({"rewards": [None, 1.0]})["failed"]


def test_transcripts_are_added_to_the_file(tmp_path):
    file = tmp_path / "t.jsonl"
    for _ in range(2):
        evaluate({"rewards": [1.0, 0.0]}, transcripts=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["row"], line["sample"], line["reward"]) for line in lines] == [(3, 0, 1.0), (3, 1, 0.0)] * 2
    assert lines[0]["columns"] == {"rewards": [1.0, 0.0]}


def test_transcripts_for_which_there_is_no_room_end_the_evaluation_in_words(tmp_path):
    with pytest.raises(RunError, match=r"transcripts of row 3 could not be written: .*Make room"):
        evaluate({"rewards": [1.0, 0.0]}, transcripts=tmp_path)
