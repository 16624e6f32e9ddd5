"""What a configuration says of an agent that is a program, or is asked at the door."""

import sys
from pathlib import Path

import pytest

import install
from controller.check.plugins import plugin_remarks
from controller.cli import needs
from controller.config.load import load_config
from protocol.errors import ConfigError


def load(folder, agent):
    file = folder / "run.yaml"
    file.write_text(f"data: {{path: rows.jsonl}}\nreward: {{function: exact}}\nagent: {agent}\n")
    return load_config(file)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("{command: [x], function: 'a.py:f'}", "agent.command.*is set, and so is agent.function, 'a.py:f'"),
        ("{kind: tools}", "agent.kind.*says what agent.function names, and that is empty"),
        ("{kind: tools, command: [x]}", "agent.kind.*says what agent.function names, and that is empty"),
    ],
)
def test_an_agent_that_contradicts_itself_is_refused(tmp_path, agent, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        load(tmp_path, agent)


def test_files_of_a_command_are_found_beside_the_configuration_and_its_names_stay_names(tmp_path):
    for name in ("python3", "play.py"):
        (tmp_path / name).touch()
    link = tmp_path / "env"
    link.symlink_to(sys.executable)
    agent = load(tmp_path, f"{{command: [python3, play.py, --deep, nothing.py, {link}]}}").agent
    assert agent.command == ("python3", f"{tmp_path}/play.py", "--deep", "nothing.py", str(link))
    assert (agent.is_on, agent.has_door, agent.key) == (True, True, "agent.command")


def test_a_program_that_this_machine_has_not_is_named_where_it_is_to_run(tmp_path):
    def told(agent):
        remarks = plugin_remarks(load(tmp_path, agent))
        return [text for _, key, text in remarks if key == "agent.command"]

    assert "'no_such_program', which this machine has not" in told("{command: [no_such_program]}")[0]
    assert told("{command: [no_such_program], workers: 0}") == told("{command: [python3]}") == []
    assert "names the script 'gone.py', and there is no such file" in told("{command: [python3, gone.py]}")[0]
    (tmp_path / "play.py").touch()
    for words in ("python3, play.py, gone.py", "python3, -m, gone.py", "sh, gone.py"):
        assert told(f"{{command: [{words}]}}") == []
    assert told("{command: [python3, gone.py], workers: 0}") == []


@pytest.mark.parametrize(
    ("agent", "extras"),
    [
        ("{command: [python3]}", ["web"]),
        ("{function: 'a.py:f', door: true}", ["web"]),
        ("{function: 'a.py:f'}", []),
        ("{command: [python3], workers: 0}", []),
    ],
)
def test_the_door_needs_its_extra_where_agents_run(tmp_path, monkeypatch, agent, extras):
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    monkeypatch.setattr(install, "EXTRAS", {extra: ("no_such_" + extra,) for extra in install.EXTRAS})
    monkeypatch.setitem(install.EXTRAS, "workers", ())
    config = load(tmp_path, agent)
    if not extras:
        needs.require(config)
        return
    with pytest.raises(install.Lacking) as raised:
        needs.require(config)
    assert set(extras) <= set(raised.value.extras)


def test_the_example_of_an_openai_client_plays_the_game_of_the_other():
    examples = Path(__file__).resolve().parents[4] / "examples"
    config, other = (load_config(examples / f"{name}.yaml") for name in ("openai_agent", "guess"))
    assert config.agent.function == f"{examples}/openai_agent.py:episode"
    assert config.agent.max_turn_tokens == other.agent.max_turn_tokens == 1  # with two it never wins
