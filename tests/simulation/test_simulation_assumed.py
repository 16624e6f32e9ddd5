"""A simulation says first which cluster it assumes, and how to set it."""

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.config.load import load_config
from controller.config.models import Config
from controller.simulation.assumed import in_words
from controller.simulation.simulated_workers import OF_A_STEP

ROOT = Path(__file__).parents[2]


def told(**sections) -> str:
    return "\n".join(in_words(Config.model_validate(sections)))


def test_the_first_lines_are_the_assumed_cluster_as_the_document_prints_it(capsys):
    assert main(["simulate", str(ROOT / "examples" / "quickstart.yaml"), "run.steps=6"]) == 0
    said = capsys.readouterr().out.splitlines()
    lines = in_words(load_config(ROOT / "examples" / "quickstart.yaml"))
    assert said[: len(lines)] == lines
    assert "\n".join(lines[:-1]) in (ROOT / "docs" / "simulation.md").read_text()


def test_what_was_set_is_told_and_the_defaults_are_named_as_such():
    assert "an 8B model on one large-memory GPU (H20)" in told()
    engine = {"floor_s": 0.1, "speeds": (1.0, 0.5)}
    simulation = {"engine": engine, "train_base_s": 2.0, "score_s": 1.5}
    own = told(simulation=simulation, reward={"processes": 8})
    assert "as simulation.engine says" in own
    assert "8B" not in own
    assert "relative speeds 1, 0.5" in own
    assert "and 2 s a step" in own
    assert "rewards: 1.5 s a group, 1 x 8 at a time" in own
    assert "10 tokens/s with one response" in own


def test_how_to_set_it_is_said():
    assert "simulation.KEY=VALUE" in told()
    assert "trainer: unlimited tokens/s" in told(simulation={"train_token_s": 0.0})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["simulation.engine.speeds=[1.0, 0.0]"],
            "simulation.engine.speeds.1 (command line): 0.0 is refused",
        ),
        (["simulation.engine.speeds=[-1]"], "simulation.engine.speeds.0 (command line): -1 is refused"),
        (["simulation.engine.speeds=[]"], "simulation.engine.speeds (command line): [] is refused"),
        (
            [f"simulation.engine.{name}=0" for name in OF_A_STEP],
            "simulation.engine.decode_context_s are all 0: a decode step would take no time",
        ),
        (
            ["simulation.workload.trace=runs/mine"],
            "and simulation.workload.kind is lognormal, which takes no lengths from a run; give "
            "simulation.workload.kind=trace, or leave the trace out",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_words(capsys, words, said):
    assert main(["simulate", str(ROOT / "examples" / "quickstart.yaml"), *words]) == 2
    assert said in capsys.readouterr().err
