"""`simulate --gpus N`: the front, the best split and what to copy; and what is refused."""

import json

import pytest

from controller.cli.main import main
from controller.cli.planning.gpus import config_of_run
from controller.config.load import load_config
from controller.config.models import Config
from controller.simulation.splits import Split, measure
from tests.support.recorded_run import record

SMALL = """
run: {steps: 12}
rollout: {instances: 1, group_size: 2, max_response_tokens: 100, max_running: 8}
trainer: {batch_groups: 2}
simulation: {pull_s: 0.1}
logging: {console: plain}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    return str(tmp_path / "small.yaml")


def test_the_best_split_is_printed_as_overrides_that_load(file, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["simulate", file, "--gpus", "3", "--bounds", "1", "-o", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("[    0 s] 3 pairs of bound and cap, and of each the best split")
    said = shown.out
    best = said.partition("Best: ")[2].splitlines()[0].split()
    config = load_config(file, best)
    assert config.trainer.ranks + config.rollout.instances == 3
    points = json.loads((out / "splits.json").read_text())
    shown = [line.split() for line in said.splitlines() if line.strip() and line.strip()[0].isdigit()]
    assert len(shown) == sum(one["is_front"] for one in points) > 0
    fastest = max(points, key=lambda one: one["tokens_per_s"])
    assert fastest["split"] == best
    assert (out / "pareto.svg").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "3", "--at", "4"], "leave out --at"),
        (["--staleness", "1"], "expected that beside it"),
        (
            ["--gpus", "2", "--bounds", "1", "--staleness", "0", "staleness.strategy=one_step"],
            "mean staleness of 0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(file, words, message, capsys):
    assert main(["simulate", file, *words]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_gives_its_cluster_and_the_error_of_its_simulation(tmp_path):
    own = Config.model_validate(
        {
            "run": {"steps": 12},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 60},
            "trainer": {"batch_groups": 2},
        }
    )
    record(tmp_path / "run", own)
    config, error = config_of_run(str(tmp_path / "run"))
    assert config.simulation.workload.kind == "trace"
    assert config.simulation.train_token_s != own.simulation.train_token_s
    assert error is not None
    point = measure(config, Split(1, 2, 1, 2.0), [1])
    assert point is not None
    assert 0.5 < point.staleness_mean <= 1.0
