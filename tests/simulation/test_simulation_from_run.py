"""`simulate --from RUN`: the run as it was measured, as its simulation has it, and as it would be."""

import json
from dataclasses import replace

import pytest

from controller.cli.main import main
from controller.config.load import change_config
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.store import Store
from controller.history.compare_strategies import other_config
from controller.simulation import from_run, whatif
from controller.simulation.from_run import changed_config, predict
from controller.simulation.whatif import go_on
from protocol.errors import ConfigError, RunError
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


def test_a_run_of_an_agent_is_refused_with_what_can_be_taken_from_it(tmp_path, capsys):
    agent = {"agent": {"function": "by_hand", "concurrency": 32}, "run": {"steps": 2}}
    record(tmp_path / "run", Config.model_validate(CONFIG.model_dump(exclude={"run"}) | agent))
    assert main(["simulate", "--from", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "it is the run of an agent, and turns and the time of environments are not read" in said
    trace = f"simulation.workload.trace={tmp_path / 'run' / 'run.db'}"
    assert trace in said
    (tmp_path / "agent.yaml").write_text("agent: {function: by_hand}\nrun: {steps: 3}\n")
    words = ["simulate", str(tmp_path / "agent.yaml"), "simulation.workload.kind=trace", trace]
    assert main(words) == 0, "what the refusal names can be done"


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("staleness.sampler=similar_length", "all orders are one"),
        ("staleness.sampler_batches=2", "all orders are one"),
        ("staleness.filter=zero_variance", "rewards are noise"),
        ("simulation.workload.kind=fixed", "the lengths are those of the run's responses"),
    ],
)
def test_what_cannot_be_known_from_a_run_is_refused_with_the_reason(change, why):
    with pytest.raises(ConfigError, match=f"What {change} would change cannot be known.*{why}"):
        changed_config(CONFIG, [change])
    assert (
        changed_config(CONFIG, ["simulation.workload.prompt_tokens=7"]).simulation.workload.prompt_tokens == 7
    )


@pytest.mark.usefixtures("short")
def test_a_slow_trainer_is_waited_for_and_what_runs_warn_of_is_told(run, capsys):
    with Recording(run) as recording:
        found = predict(recording, ["simulation.train_token_s=0.05"])
    assert found.changed.seconds / found.changed.steps > whatif.LEAST_PATIENCE_S
    warned = replace(found, warnings=tuple(f"worker {number} was lost" for number in range(12)))
    said = from_run.in_words(warned).splitlines()
    assert said.count("warning: worker 0 was lost") == 1
    assert said[-1] == "There are 2 more warnings, which are not told."
    assert warned.as_json()["warnings"] == list(warned.warnings)


def test_a_slow_step_holds_generation_scoring_training_publishing_and_a_pull(run):
    with Recording(run) as recording:
        measured = whatif.measure(recording)

    def slow_s(*changes):
        zeros = [f"simulation.{key}=0" for key in ("score_s", "publish_s", "pull_s", "train_token_s")]
        return whatif.slow_step_s(change_config(CONFIG, [*zeros, *changes]), measured)

    generated_s = slow_s()
    assert generated_s > 0
    assert slow_s("rollout.instances=1") == pytest.approx(2 * generated_s)
    assert slow_s("simulation.score_s=5") == pytest.approx(generated_s + 5 * 8)
    assert slow_s("simulation.train_base_s=5") == pytest.approx(generated_s + 5)
    assert slow_s("simulation.train_token_s=1") > generated_s + 32
    assert slow_s("simulation.publish_s=3", "simulation.pull_s=4") == pytest.approx(generated_s + 7)


@pytest.mark.usefixtures("short")
def test_a_trainer_that_is_given_up_again_and_again_ends_the_prediction_with_the_reason(run):
    expected = r"One batch went to the trainer \d times \(.*trainer.*\)\. Give other changes; .*report it"
    with Recording(run) as recording, pytest.raises(RunError, match=expected):
        predict(recording, ["simulation.train_token_s=1"])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", ["trace", "lognormal"])
def test_a_run_is_simulated_whatever_trace_its_file_names(run, tmp_path, kind):
    tree = CONFIG.model_dump()
    tree["run"]["steps"] = 12
    if kind == "trace":
        tree["simulation"]["workload"] |= {"kind": "trace", "trace": str(run)}
        record(tmp_path / "run", Config.model_validate(tree))
    else:
        record(tmp_path / "run", CONFIG)
    store = Store(tmp_path / "run" / "run.db")
    tree["simulation"]["workload"] |= {"kind": kind, "trace": str(tmp_path / "moved")}
    with store.transaction():
        store.put_fact("config", Config.model_validate(tree).model_dump_json())
    store.close()
    with Recording(tmp_path / "run") as recording:
        began_again = predict(recording, [])
        assert began_again.own.tokens_per_s > 0
        routing = other_config(recording.config(), None, ["staleness.routing=round_robin"])
        assert go_on(recording, routing).other.tokens_per_s > 0


@pytest.mark.usefixtures("short")
def test_what_the_simulation_itself_does_is_no_warning(run):
    with Recording(run) as recording:
        changes = ["staleness.routing=round_robin"]
        assert predict(recording, changes, at_s=recording.until_s / 2).warnings == ()


@pytest.mark.usefixtures("short")
def test_of_a_sampler_it_is_told_that_what_it_knew_of_prompts_is_not_simulated(tmp_path):
    tree = CONFIG.model_dump()
    tree["staleness"] |= {"sampler": "similar_length", "sampler_batches": 2}
    tree["simulation"]["workload"] |= {"prompts": 32, "group_correlation": 0.8}
    outcome = record(tmp_path / "run", Config.model_validate(tree))
    assert outcome.warnings == []
    with Recording(tmp_path / "run") as recording:
        found = predict(recording, [])
    assert found.warnings == (whatif.NO_ORDER,)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("key", "body", "words"),
    [
        ("routing", "return a[9].id", r"mine.py, line 2\) raised IndexError.* Mend the function\.$"),
        ("admission", "return 0", r"the run fails after 0 batches \(Nothing can .* Mend the function\)\.$"),
        ("admission", "return a.train_version < 6", r"the run fails after 6 batches \(Nothing can happen "),
    ],
)
def test_a_strategy_that_errs_is_told_and_no_figure_of_it(run, tmp_path, key, body, words):
    parameters = {"routing": "a, b, c", "admission": "a, b"}[key]
    (tmp_path / "mine.py").write_text(f"def rule({parameters}):\n    {body}\n")
    with Recording(run) as recording, pytest.raises(RunError, match=words):
        predict(recording, [f"staleness.{key}={tmp_path / 'mine.py'}:rule"])


@pytest.mark.usefixtures("short")
def test_what_a_simulated_run_warns_of_is_kept(run):
    with Recording(run) as recording:
        found = predict(recording, ["staleness.spare_groups=1", "simulation.faults.rollout_kills=0.2"])
    assert any("rollout" in text for text in found.warnings)
