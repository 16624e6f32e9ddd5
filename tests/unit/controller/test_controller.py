"""A reward given as an object reaches the workers, or is refused with a reason that is true; and the document
on embedding names what there is."""

import asyncio
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from controller import Controller
from controller.config.models import Config
from controller.controller import forgiven
from controller.given.importable import import_path
from controller.host.supervisor import Supervisor
from protocol.errors import ConfigError, RunError
from protocol.importing import being_imported, load_object

ROOT = Path(__file__).parents[3]


class Judge:
    def __init__(self, right: str) -> None:
        self.right = right

    def __call__(self, completion: str) -> float:
        return float(completion == self.right)


judge = Judge("yes")
partly = functools.partial(Judge("no").__call__)
by_lambda = lambda completion: 1.0  # noqa: E731


def test_a_callback_that_fails_is_logged_and_costs_nothing(caplog):
    heard = []

    def callback(text, *, more=0):
        heard.append((text, more))
        raise ConnectionError("the chat is down")

    forgiven(callback)("one", more=1)
    forgiven(callback)("two")
    assert heard == [("one", 1), ("two", 0)]
    assert caplog.text.count("A callback that was given to Controller failed") == 2
    assert "ConnectionError: the chat is down" in caplog.text
    controller = Controller(Config(), on_warning=callback, on_evaluation=callback, on_progress=callback)
    controller._shell._on_warning("three")
    controller._shell._on_evaluation({"step": 1})
    controller._shell._on_progress(0.5, "four")
    assert len(heard) == 4


def test_what_a_program_does_with_its_lines_does_not_reach_the_run():
    """The next snapshot holds the lines since the last one: with a tensor in one, it ended the run."""
    heard = []
    controller = Controller(Config(), on_evaluation=heard.append)
    line = {"policy_version": 1, "reward/mean": 0.5, "by_source": {"a": 1}}
    controller._shell._on_step(line)
    step = controller._steps.get_nowait()
    assert step is not None
    step.metrics["mine"] = object()
    step.metrics["by_source"].clear()
    controller._shell._on_evaluation(line)
    heard[0].clear()
    assert controller.evaluations == [line]
    controller.evaluations[0].clear()
    assert line == {"policy_version": 1, "reward/mean": 0.5, "by_source": {"a": 1}}


SCRIPT = """
import asyncio
from controller import Controller
from controller.config.models import Config

def score(completion):
    return 1.0

async def main():
    async with Controller(Config.model_validate({"run": {"dir": "runs"}}), prompts=[], reward=score):
        pass

asyncio.run(main())
"""


def test_a_script_that_starts_a_run_as_workers_import_it_is_told_of_its_guard(tmp_path, monkeypatch):
    """It began another run in each worker; or its own run, and heard that its directory is in use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "named.py").write_text(SCRIPT)
    for spec in "script.py:score", "named:score":
        with pytest.raises(ConfigError, match=f"^The file of '{spec}' starts a run.*if __name__ == "):
            load_object(spec)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "script.py").write_text("def score(completion): return 1.0")
    assert load_object("script.py:score")("") == 1.0
    assert being_imported() is None


@pytest.mark.parametrize("reward", [judge, partly, by_lambda])
def test_what_has_a_name_at_the_top_level_is_found_by_it(reward):
    path, folder = import_path(reward)
    assert load_object(path) is reward
    assert folder in [str(ROOT), str(Path(__file__).parent)]


def test_an_object_made_in_another_module_than_its_class_is_found_there(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text(
        "from tests.unit.controller.test_controller import Judge\nmine = Judge('x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = load_object("made_here:mine")
    assert import_path(mine) == ("made_here:mine", str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_here")
    with pytest.raises(ConfigError, match="an object of Judge, which workers"):
        import_path(mine)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (Judge, "is the class Judge; expected an object of it"),
        (Judge("inside"), "an object of Judge, which workers, being other processes, cannot import"),
        (judge.__call__, "Judge.__call__, which workers"),
        (lambda completion: 0.0, "<lambda>, which workers"),
        (print, "print, which workers"),
        (5, "The reward is 5; expected a function"),
    ],
)
def test_what_no_worker_could_import_is_refused_with_what_it_is(tmp_path, reward, words):
    config = Config.model_validate({"run": {"dir": str(tmp_path)}})
    with pytest.raises(ConfigError, match=re.escape(words)):
        Controller(config, reward=reward)


async def episode(policy, row):
    return 1.0


@pytest.mark.parametrize(("agent", "name"), [(episode, "episode"), (Judge, "Judge")])
def test_an_agent_is_named_by_the_path_that_workers_import(tmp_path, agent, name):
    config = Config.model_validate({"run": {"dir": str(tmp_path)}})
    assert Controller(config, agent=agent).config.agent.function == f"{__name__}:{name}"


def test_an_agent_that_is_given_takes_the_place_of_a_command(tmp_path):
    config = Config.model_validate({"run": {"dir": str(tmp_path)}, "agent": {"command": ["./agent.sh"]}})
    agent = Controller(config, agent=episode).config.agent
    assert (agent.function, agent.command) == (f"{__name__}:episode", ())


def test_an_agent_that_no_worker_could_import_is_refused(tmp_path):
    async def inside(policy, row):
        return 1.0

    config = Config.model_validate({"run": {"dir": str(tmp_path)}})
    with pytest.raises(ConfigError, match=r"The agent is .*inside, which workers.*async def episode"):
        Controller(config, agent=inside)


def test_the_document_prints_the_example_that_is_run_and_names_all_that_there_is():
    text = (ROOT / "docs" / "embedding.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", text, re.S)
    assert code in (ROOT / "examples" / "embedded.py").read_text()
    arguments = list(inspect.signature(Controller).parameters)
    public = [name for name, value in vars(Controller).items() if not name.startswith("_")]
    for name in (*arguments, *public, "evaluations", "config"):
        assert re.search(rf"`{name}[`(]", text), f"{name} is not in docs/embedding.md"


TYPED = """
import sys
from controller import Controller
from controller.config.models import Config

def score(completion):
    return 1.0

try:
    Controller(Config.model_validate({"run": {"dir": sys.argv[1]}}), reward=score)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_reward_that_was_typed_in_is_refused_at_once(tmp_path):
    command = [sys.executable, "-", str(tmp_path)]
    done = subprocess.run(command, input=TYPED, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "ConfigError The reward is score, which workers, being other processes, cannot"
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda controller: controller.summary,
        lambda controller: controller.run_dir,
        lambda controller: controller.snapshot(),
        lambda controller: controller.stop("enough"),
    ],
    ids=["summary", "run_dir", "snapshot", "stop"],
)
def test_what_a_run_says_before_it_has_begun_is_an_error_in_words(tmp_path, ask):
    controller = Controller(Config.model_validate({"run": {"dir": str(tmp_path)}}))
    with pytest.raises(RuntimeError, match=r"is of a run that has begun.*`async with Controller"):
        ask(controller)
    assert not controller.has_begun


async def test_steps_of_a_run_that_has_not_begun_are_an_error_in_words(tmp_path):
    controller = Controller(Config.model_validate({"run": {"dir": str(tmp_path)}}))
    with pytest.raises(RuntimeError, match="has not been entered"):
        await asyncio.wait_for(anext(controller.train()), 5)


def of_nobody(tmp_path, **settings) -> Config:
    """A run without workers, whose initial model nobody can make."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    tree = {
        "run": {"dir": str(tmp_path), "name": "run"},
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "model": {"factory": "nowhere:make"},
        "rollout": {"instances": 0},
        "trainer": {"local": False},
        "reward": {"workers": 0},
    }
    return Config.model_validate(tree | settings)


async def test_a_controller_is_entered_once(tmp_path):
    controller = Controller(of_nobody(tmp_path))
    with pytest.raises(RunError, match="No module named 'nowhere'"):
        await to_the_end(controller)
    with pytest.raises(RuntimeError, match=r"entered before.*Expected a new Controller"):
        await to_the_end(controller)
    assert controller.summary["ending"] == "failed"


async def test_an_error_in_a_task_of_a_task_is_told_in_its_own_words(tmp_path, monkeypatch):
    async def start(*_, **options):
        raise ValueError("an odd thing happened")

    monkeypatch.setattr(Supervisor, "_start", start)
    config = of_nobody(tmp_path, reward={"workers": 1}, model={"path": str(tmp_path)})
    with pytest.raises(RunError, match=r"failed with ValueError: an odd thing happened\. This is a bug"):
        await to_the_end(Controller(config))


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_controller_that_was_not_entered_leaves_the_run_to_the_next(tmp_path, monkeypatch, how):
    config, real = of_nobody(tmp_path, notify={"command": ("/bin/true",)}), asyncio.create_subprocess_exec

    async def entered_no_further(*words, **options):
        if how == "failed":
            raise ValueError("embedded null byte")
        entering.cancel()
        return await real(*words, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", entered_no_further)
    entering = asyncio.ensure_future(Controller(config).__aenter__())
    with pytest.raises((asyncio.CancelledError, ValueError)):
        await entering
    held = [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))]
    assert [path for path in held if path != config.data.path] == []
    monkeypatch.undo()
    async with Controller(config) as controller:
        assert controller.run_dir == tmp_path / "run"


async def to_the_end(controller: Controller) -> None:
    async with controller:
        async for _ in controller.train():
            pass
