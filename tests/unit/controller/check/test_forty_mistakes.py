"""Mistakes that people make: `check` answers each with its place and what to do, in seconds.

The list was written down before any answer was mended. Two thirds are what a user tried, and what killed runs
after a minute; the rest was made up here. An answer counts if it holds all words of its row; exit code 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controller.cli.main import main
from tests.support.small_project import CHAT_ROWS, make_project

Files = dict[str, str]


@dataclass(frozen=True)
class Mistake:
    """One mistake in an otherwise sound project, and words of the answer that helps."""

    name: str
    words: tuple[str, ...]
    change: tuple[str, ...] = ()  # key=value
    files: Files = field(default_factory=dict)  # by name; run.yaml, rewards.py and rows.jsonl are there
    command: tuple[str, ...] = ("check", "run.yaml")
    prepare: Callable[[Path], object] | None = None  # what no text file can say


def reward(code: str) -> Files:
    return {"rewards.py": code}


def strategy(code: str) -> Files:
    return {"mine.py": code}


def _delete(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _dataset_dict(folder: Path) -> None:
    (folder / "saved" / "train").mkdir(parents=True)
    (folder / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


TRIED_BY_A_USER = [
    Mistake(
        "a misspelt function",
        ("reward.function", "Did you mean score?"),
        ("reward.function=rewards.py:scor",),
    ),
    Mistake(
        "an open port without keys", ("controller.bind", "keygen"), ("controller.bind=tcp://0.0.0.0:7777",)
    ),
    Mistake(
        "a key given twice",
        ("run.steps (line 3)", "twice, first (line 2)", "Keep one"),
        files={"run.yaml": "run:\n  steps: 2\n  steps: 3\n"},
    ),
    Mistake(
        "another system's learning rate",
        ("trainer.learning_rate", "`trainer.lr`"),
        ("trainer.learning_rate=1",),
    ),
    Mistake("another system's KL", ("trainer.beta", "`trainer.kl_coefficient`"), ("trainer.beta=0.1",)),
    Mistake("verl's rollout.n", ("rollout.n", "`rollout.group_size`"), ("rollout.n=8",)),
    Mistake(
        "TRL's group size",
        ("rollout.num_generations", "`rollout.group_size`"),
        ("rollout.num_generations=8",),
    ),
    Mistake("a misspelt command", ("statsu", "Did you mean `status`?"), command=("statsu", "runs/run")),
    Mistake("a misspelt check", ("chekc", "Did you mean `check`?"), command=("chekc", "run.yaml")),
    Mistake(
        "a word that YAML 1.1 takes for a boolean",
        ("staleness.migration", "'no'", "none, gap, benefit"),
        files={
            "extra.yaml": "model: {path: model}\ndata: {path: rows.jsonl}\n"
            "reward: {function: rewards.py:score}\nstaleness: {migration: no}\n"
        },
        command=("check", "extra.yaml"),
    ),
    Mistake(
        "no such file", ("There is no file nowhere.yaml", "path of a YAML"), command=("check", "nowhere.yaml")
    ),
    Mistake(
        "not YAML",
        ("run.yaml cannot be read", "line 2", "Expected YAML"),
        files={"run.yaml": "run:\n\tsteps: 2\n"},
    ),
    Mistake(
        "a list of sections", ("run.yaml is a list", "Expected for example"), files={"run.yaml": "- run\n"}
    ),
    Mistake("a misspelt section", ("rolout", "Did you mean `rollout`?"), ("rolout.instances=1",)),
    Mistake("a number as text", ("trainer.ranks", "'2' is refused", "integer"), ("trainer.ranks='2'",)),
    Mistake(
        "a number out of range",
        ("staleness.max_staleness", "greater than or equal to 0"),
        ("staleness.max_staleness=-1",),
    ),
    Mistake("an override without a value", ("'run.steps'", "key.path=value"), ("run.steps",)),
    Mistake(
        "a batch that does not divide",
        ("trainer.minibatches", "nearest divisor"),
        ("trainer.batch_groups=10", "trainer.minibatches=4"),
    ),
    Mistake("no model there", ("model.path", "no config.json", "hf download"), ("model.path=nowhere",)),
    Mistake(
        "no data there",
        ("data.path", "there is no file or folder nowhere.jsonl"),
        ("data.path=nowhere.jsonl",),
    ),
    Mistake(
        "rows that are not JSON",
        ("data.path", "not JSON", "one object per line"),
        files={"rows.jsonl": "what?\n"},
    ),
    Mistake(
        "another name for the prompt",
        ("data.columns.prompt", "it has 'question'", "{prompt: THE_COLUMN}"),
        files={"rows.jsonl": '{"question": "1+1"}\n'},
    ),
    Mistake(
        "no reward file",
        ("reward.function", "there is no file nowhere.py"),
        ("reward.function=nowhere.py:score",),
    ),
    Mistake(
        "a reward that is not Python",
        ("rewards.py is not valid Python", "line 1"),
        files=reward("def score(:\n"),
    ),
    Mistake(
        "more tokens than the model has positions",
        ("rollout.max_response_tokens", "positions; lower either"),
        ("rollout.max_response_tokens=100000",),
    ),
    Mistake(
        "an unknown strategy",
        ("staleness.strategy", "'stalefolw'", "'staleflow'"),
        ("staleness.strategy=stalefolw",),
    ),
]

KILLED_A_RUN_LATER = [
    Mistake(
        "a reward that asks for a column that is not there",
        ("reward.function", "`answr`", "rewards.py, line 1", "Rename the parameter"),
        files=reward("def score(completion, answr):\n    return 1.0\n"),
    ),
    Mistake(
        "a reward that takes no response",
        ("reward.function", "(completon, answer)", "rewards.py, line 1", "Expected one of"),
        files=reward("def score(completon, answer):\n    return 1.0\n"),
    ),
    Mistake(
        "a class in place of a reward",
        ("reward.function", "is a class", "rewards.py, line 1", "score = "),
        files=reward("class score:\n    def __call__(self, completion):\n        return 1.0\n"),
    ),
    Mistake(
        "messages for a model without a chat template",
        ("data.path", "chat template", "model.path"),
        files={"rows.jsonl": CHAT_ROWS},
    ),
    Mistake(
        "prompts all longer than the limit",
        ("rollout.max_prompt_tokens", "The prompt has", "Raise it"),
        ("rollout.max_prompt_tokens=2",),
    ),
    Mistake(
        "a reward that returns nothing",
        ("reward.function", "rewards.py, line 1", "no `return` with a value"),
        files=reward("def score(completion, answer):\n    completion == answer\n"),
    ),
]

MADE_UP_HERE = [
    Mistake(
        "routing that raises",
        ("staleness.routing", "mine.py, line 2", "IndexError", "or None"),
        ("staleness.routing=mine.py:route",),
        strategy("def route(work, instances, settings):\n    return instances[7].id\n"),
    ),
    Mistake(
        "routing to an instance that was not offered",
        ("staleness.routing", "mine.py, line 1", "99", "or None"),
        ("staleness.routing=mine.py:route",),
        strategy("def route(work, instances, settings):\n    return 99\n"),
    ),
    Mistake(
        "a synchronization that forgets to return",
        ("staleness.synchronization", "mine.py, line 1", "None", "list"),
        ("staleness.synchronization=mine.py:choose",),
        strategy("def choose(instances, settings):\n    [i.id for i in instances]\n"),
    ),
    Mistake(
        "a strategy that is a class",
        ("staleness.admission", "is a class", "mine.py, line 1"),
        ("staleness.admission=mine.py:Rule",),
        strategy("class Rule:\n    def __call__(self, view, batches):\n        return 1\n"),
    ),
    Mistake(
        "a filter of the wrong shape",
        ("staleness.filter", "mine.py", "TypeError", "rewards"),
        ("staleness.filter=mine.py:keep",),
        strategy("def keep(group, rewards):\n    return True\n"),
    ),
    Mistake(
        "a trainer that is not there",
        ("trainer.engine", "there is no file nowhere.py", "fsdp"),
        ("trainer.engine=nowhere.py:Nothing",),
    ),
    Mistake(
        "a loss that returns one number",
        ("trainer.loss", "mine.py, line 1", "one number per token"),
        ("trainer.loss=mine.py:loss",),
        strategy("def loss(tokens):\n    return tokens.logprobs.sum()\n"),
    ),
    Mistake(
        "prompts that take no seed",
        ("data.path", "mine.py, line 1", "seed"),
        ("data.path=mine.py:prompts",),
        strategy("def prompts():\n    yield {'prompt': '1+1', 'answer': '2'}\n"),
    ),
    Mistake(
        "CSV without names",
        ("data.columns.prompt", "rows.csv has no column 'prompt'", "it has '1+1', '2'"),
        ("data.path=rows.csv",),
        files={"rows.csv": "1+1,2\n2+2,4\n"},
    ),
    Mistake(
        "a DatasetDict",
        ("data.path", "splits train, test", "saved/train"),
        ("data.path=saved",),
        prepare=_dataset_dict,
    ),
    Mistake(
        "a list in a JSON file",
        ("data.path", "one JSON array", "one object per line"),
        files={"rows.jsonl": '[\n {"prompt": "1+1", "answer": "2"}\n]\n'},
    ),
    Mistake(
        "a row further down that is broken",
        ("data.path", "rows.jsonl, line 3", "not JSON"),
        files={"rows.jsonl": '{"prompt": "1+1", "answer": "2"}\n' * 2 + '{"prompt": "1+\n'},
    ),
    Mistake(
        "a model without a tokenizer", ("model.path", "tokenizer"), prepare=_delete("model/tokenizer.json")
    ),
    Mistake(
        "dashes before a key",
        ("--trainer.lr", "trainer.lr=1e-5"),
        command=("check", "run.yaml", "--trainer.lr", "1e-5"),
    ),
]


pytestmark = pytest.mark.usefixtures("answered_here")
MISTAKES = [*TRIED_BY_A_USER, *KILLED_A_RUN_LATER, *MADE_UP_HERE]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_with_its_place_and_a_remedy(mistake, tmp_path, monkeypatch, capsys):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, text in mistake.files.items():
        (tmp_path / name).write_text(text)
    if mistake.prepare is not None:
        mistake.prepare(tmp_path)
    code = main([*mistake.command, *mistake.change])
    said = capsys.readouterr()
    answer = said.out + said.err
    assert code == 2, answer
    assert [word for word in mistake.words if word not in answer] == [], answer
    assert "Traceback" not in answer


def test_the_project_has_no_mistake_without_one(tmp_path, monkeypatch, capsys):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "run.yaml"]) == 0, capsys.readouterr()
    assert "0 errors" in capsys.readouterr().out
