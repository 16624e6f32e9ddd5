"""An agent is imported for a thorough check, in a process of its own, and taken as a run would take it."""

import pytest

from controller.check import plugins
from controller.check.plugins import plugin_remarks
from controller.config.models import Config
from protocol.errors import Unanswered
from workers.agent.try_agent import answer

CODE = """
async def episode(policy, row): return 1.0
async def other(policy, row, colour): return 1.0
class Silent:
    def reset(self, **row): return "go"
    def look(self, where: str) -> str: return "x"
    def get_reward(self): return 1.0
number = 3
class Workflow:
    async def run(self, data, **extra_kwargs): return 1.0
async def session(base_url, prompt, request_kwargs, metadata): return 1.0
async def odd(base_url, prompt, colour): return 1.0
"""
FAILING = "import not_there_at_all\nasync def episode(policy, row): return 1.0\n"
EXITING = "import sys; sys.exit('enough')\nasync def episode(policy, row): return 1.0\n"


@pytest.fixture
def file(tmp_path):
    def write(code=CODE):
        path = tmp_path / "mine.py"
        path.write_text(code)
        return path

    return write


def config(function, **agent):
    return Config.model_validate({
        "agent": {"function": str(function), **agent}, "reward": {"function": ""}, "data": {"path": "x.jsonl"}
    })  # fmt: skip


def tried(function, **agent):
    return answer({"agent": config(function, **agent).agent.model_dump_json()})


@pytest.mark.parametrize(
    ("name", "agent", "words"),
    [
        ("other", {}, "takes (policy, row, colour); expected `policy` and `row`"),
        ("Silent", {}, "'look' has no docstring"),
        ("number", {}, "of no kind"),
        ("odd", {}, "takes (base_url, prompt, colour); expected `base_url` and `prompt`, if it wants them"),
        ("session", {"options": {"size": 3}}, "`agent.options` gives (size)"),
        ("Workflow", {"options": {"size": 3}}, "cannot be made of `agent.options`"),
        ("episode", {"options": {"size": 3}}, "agent.options"),
    ],
)
def test_what_no_kind_takes_is_named(file, name, agent, words):
    assert words in tried(f"{file()}:{name}", **agent)


@pytest.mark.parametrize(("code", "words"), [(FAILING, "not_there_at_all"), (EXITING, "SystemExit: enough")])
def test_an_import_that_fails_is_named(file, code, words):
    assert words in tried(f"{file(code)}:episode")


def test_a_server_that_is_not_there_is_named():
    told = tried("http://127.0.0.1:9", kind="openenv")
    assert "http://127.0.0.1:9" in told
    assert "start it first" in told


def test_a_sound_agent_is_left_alone(file):
    assert tried(f"{file()}:episode") is None
    assert tried(f"{file()}:other", options={"colour": "red"}) is None
    assert tried(f"{file()}:Workflow") is tried(f"{file()}:session") is None  # by their shape, without a door


def test_it_is_asked_only_if_there_is_time_and_this_machine_runs_it(file, monkeypatch):
    asked = []
    monkeypatch.setattr(plugins, "ask", lambda module, *_, **__: asked.append(module) or "it is no good")
    function = f"{file()}:episode"
    assert list(plugin_remarks(config(function))) == []
    assert list(plugin_remarks(config(function, workers=0), is_thorough=True)) == []
    assert asked == []
    assert list(plugin_remarks(config(function), is_thorough=True)) == [
        ("error", "agent.function", "it is no good")
    ]
    assert asked == ["workers.agent.try_agent"]
    assert len(list(plugin_remarks(config(f"{file()}:nothing"), is_thorough=True))) == 1
    assert len(asked) == 1


def test_a_process_that_dies_of_it_is_told(file, monkeypatch):
    def ask(*_, **__):
        raise Unanswered("ended with exit code 3")

    monkeypatch.setattr(plugins, "ask", ask)
    ((_, _, text),) = plugin_remarks(config(f"{file()}:episode"), is_thorough=True)
    assert "ended with exit code 3" in text
    assert "Expected" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-oss", "downloads a vocabulary"),
        ("auto", "goes by a model's name"),
        ("qwen4", "neither built in (template, plain, "),
    ],
)
def test_a_renderer_that_there_is_not_is_named_in_one_sentence(file, name, words):
    ((level, key, text),) = plugin_remarks(config(f"{file()}:episode", renderer=name))
    assert (level, key) == ("error", "agent.renderer")
    assert words in text


def test_a_renderer_of_the_library_is_a_name_like_any_other(file):
    assert not list(plugin_remarks(config(f"{file()}:episode", renderer="qwen3")))
