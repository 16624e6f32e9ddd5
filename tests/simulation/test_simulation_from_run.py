"""`simulate --from RUN`: the run as it was measured, as its simulation has it, and as it would be."""

import json

import pytest

from controller.cli.main import main
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.simulation import from_run, whatif
from controller.simulation.from_run import changed_config, predict
from protocol.errors import ConfigError
from tests.support.recorded_run import record

CONFIG = Config.model_validate(
    {
        "run": {"steps": 24},
        "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 96},
        "trainer": {"batch_groups": 8},
        "staleness": {"max_staleness": 1},
        "simulation": {"pull_s": 0.2, "attach_s": 0.1, "train_token_s": 1e-4},
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("from_run") / "run"
    record(path, CONFIG)
    return path


@pytest.fixture
def short(monkeypatch):
    for module in (whatif, from_run):
        monkeypatch.setattr(module, "STEPS", 8)


def test_its_own_settings_are_predicted_as_they_were_and_a_change_beside_them(run):
    with Recording(run) as recording:
        found = predict(recording, ["staleness.max_staleness=0"], at_s=recording.until_s / 2)
    assert abs(found.error) < 0.05
    assert found.changed.staleness_max == 0
    assert found.changed.tokens_per_s < 0.9 * found.own.tokens_per_s
    assert found.at_s is None, "groups under way have no place under another bound"


@pytest.mark.usefixtures("short")
def test_another_strategy_goes_on_from_the_moment(run):
    with Recording(run) as recording:
        routed = predict(recording, ["staleness.routing=round_robin"], at_s=recording.until_s / 2)
        assert routed.at_s >= recording.until_s / 2


def test_what_a_simulation_knows_nothing_of_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.lr"):
        changed_config(CONFIG, ["trainer.lr=1e-5"])
    assert changed_config(CONFIG, ["staleness.strategy=areal"]).staleness.strategy == "areal"
    assert changed_config(CONFIG, []) == CONFIG


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compare", "sync,greedy", "--bounds", "0,4", "--seeds", "1,2"], "--compare, --bounds, --seeds"),
        (["--seed", "0", "-o", "out"], "leave out --seed, --output"),
        (["--at", "1"], "nothing is changed"),
    ],
)
def test_options_that_would_change_nothing_are_refused(run, capsys, words, said):
    assert main(["simulate", "--from", str(run), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("short")
def test_the_command_says_it_in_words_and_as_json(run, capsys):
    assert main(["simulate", "--from", str(run)]) == 0
    said = capsys.readouterr().out
    assert "the run, measured" in said
    assert "The simulation of the run itself is off by" in said
    assert main(["simulate", "rollout.instances=3", "--from", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"] == ["rollout.instances=3"]
    assert found["changed"]["tokens_per_s"] > 0
    assert main(["simulate"]) == 2
    assert "Expected a CONFIG.yaml, or --from RUN" in capsys.readouterr().err
