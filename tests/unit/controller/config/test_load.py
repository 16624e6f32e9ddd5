"""The YAML loader: what it accepts, and what it says about everything that it refuses."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from controller.config.load import load_config
from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.state.run_state import RunState
from protocol.errors import ConfigError
from strategies.cost_model import dump_coefficients
from tests.support.published_engines import PUBLISHED

ROOT = Path(__file__).resolve().parents[4]


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return load_config(str(file), overrides)


def problems(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text, *overrides)
    return str(raised.value)


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load(tmp_path, "") == Config()
    assert load(tmp_path, "run:\ntrainer:\n") == Config()
    text = "rollout:\n  sampling:\n    # temperature: 1.0\n"
    assert load(tmp_path, text) == Config()
    assert load(tmp_path, text, "rollout.sampling.temperature=0.5").rollout.sampling.temperature == 0.5


def test_numbers_and_lists_are_what_people_mean(tmp_path):
    config = load(tmp_path, "trainer: {lr: 1e-4, betas: [0, 0.9], clip_high: 1}\nrun: {name: 2026-01-01}")
    assert config.trainer.lr == 1e-4
    assert config.trainer.betas == (0.0, 0.9)
    assert config.trainer.clip_high == 1.0
    assert config.run.name == "2026-01-01"


def test_an_integer_is_not_made_of_a_fraction_or_a_string(tmp_path):
    text = problems(tmp_path, "run: {steps: 1.5}\ntrainer: {ranks: '2'}")
    assert "run.steps (line 1): 1.5 is refused; expected a valid integer" in text
    assert "trainer.ranks (line 2): '2' is refused" in text


@pytest.mark.parametrize("overrides", ["run.steps=5", {"run.steps": 5}, [("run.steps", 5)]])
def test_overrides_that_are_no_list_of_texts_are_refused_in_one_sentence(tmp_path, overrides):
    """A text was taken for a list of its characters, each of them a problem."""
    (tmp_path / "run.yaml").write_text("")
    with pytest.raises(
        ConfigError, match=r"^The overrides are .*; expected a list such as \['run\.steps=20'\]\.$"
    ):
        load_config(tmp_path / "run.yaml", overrides)


@pytest.mark.parametrize("path", [{"run": {"steps": 5}}, None])
def test_a_configuration_that_is_no_path_is_refused_in_one_sentence(path):
    """It was a TypeError of pathlib."""
    with pytest.raises(ConfigError, match=r"; expected the path of a YAML file, .*`Config\.model_validate\("):
        load_config(path)


def test_overrides_come_last_and_are_yaml(tmp_path):
    config = load(
        tmp_path,
        "run: {steps: 5}",
        "run.steps=7",
        "rollout.sampling.top_p=0.5",
        "data.columns={prompt: question}",
        "staleness.in_flight_batches=1.5",
    )
    assert config.run.steps == 7
    assert config.rollout.sampling.top_p == 0.5
    assert config.data.columns == {"prompt": "question"}
    assert config.staleness.in_flight_batches == 1.5


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("run.stesp", "run.steps"),
        ("trainer.group_size", "rollout.group_size"),
        ("rolout", "rollout"),
        ("rollout.sampling.temprature", "rollout.sampling.temperature"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path, key, nearest):
    assert f"{key} (command line): there is no such key. Did you mean `{nearest}`?" in problems(
        tmp_path, "", f"{key}=1"
    )


@pytest.mark.parametrize("key", ["1", "true", "null", "2026-11-29"])
def test_a_key_that_yaml_takes_for_no_text_is_refused_by_its_name(tmp_path, key):
    told = problems(tmp_path, f"run:\n  {key}: 2\nrollout: {{sampling: {{{key}: 3}}}}")
    name = {"true": "True", "null": "None"}.get(key, key)
    for section in ("run", "rollout.sampling"):
        assert f"{section}.{name}" in told
    assert "Did you mean `run`?" not in told


def test_a_section_that_is_on_the_command_line_alone_is_told_of_there(tmp_path):
    assert "rn (command line): there is no such key. Did you mean `run`?" in problems(
        tmp_path, "run: {steps: 3}", "rn.steps=1"
    )
    assert "rn (line 1): there is no such key" in problems(tmp_path, "rn: {name: x}", "rn.steps=1")


def test_all_problems_are_told_at_once_with_their_lines(tmp_path):
    text = problems(
        tmp_path,
        "run:\n  stesp: 3\ntrainer:\n  lr: fast\n  batch_groups: 10\n  minibatches: 3\n",
        "no_equals_sign",
    )
    assert "has 4 problems" in text
    assert "run.stesp (line 2)" in text
    assert "trainer.lr (line 4): 'fast' is refused; expected a valid number" in text
    assert "trainer.minibatches (line 6): 10 groups (trainer.batch_groups) do not divide into 3" in text
    assert "'no_equals_sign' on the command line: expected key.path=value" in text


SOURCES = """data:
  sources:
  - {name: one, path: a.jsonl}
  - name: two
    path: b.jsonl
    weight: 3
"""


@pytest.mark.parametrize(
    "text",
    ["{question}", "{question", "[a] {b}", "{q} it's", '{q}: "1"', "Answer after ####", "&a b", "one\ntwo"],
)
@pytest.mark.parametrize("key", ["data.prompt", "evaluation.data.held.prompt"])
def test_a_text_that_yaml_takes_for_something_else_is_shown_in_quotes(tmp_path, key, text):
    told = problems(tmp_path, "evaluation: {data: {held: {path: x}}}", f"{key}={text}")
    assert "the key takes a text, and YAML reads something else there" in told
    assert "flow mapping" not in told
    if text.count("{") > text.count("}"):
        return  # what its columns are is said next
    (word,) = shlex.split(told.rpartition("with quotes of YAML's: ")[2])
    config = load(tmp_path, "evaluation: {data: {held: {path: x}}}", word)
    assert text in (config.data.prompt, config.evaluation.data["held"].prompt)


def test_a_mapping_where_none_is_wanted_keeps_its_own_words(tmp_path):
    assert "data.promt (command line): there is no such key. Did" in problems(
        tmp_path, "", "data.promt={a: b}"
    )
    assert "its value is not YAML" in problems(tmp_path, "", "run.steps={a")


def test_an_override_can_name_an_entry_of_a_list(tmp_path):
    config = load(tmp_path, SOURCES, "data.sources.0.weight=2", "data.sources.1={name: third, path: c.jsonl}")
    assert [(one.name, one.weight) for one in config.data.sources] == [("one", 2), ("third", 1)]


@pytest.mark.parametrize("name", ["2", "-1", "first", "\u00b2", "9" * 5000])
@pytest.mark.parametrize("rest", ["", ".weight"])
def test_an_override_of_no_entry_of_a_list_is_refused(tmp_path, name, rest):
    text = problems(tmp_path, SOURCES, f"data.sources.{name}{rest}=2")
    assert "on the command line: data.sources is a list of 2 in the file; expected the number of one" in text
    assert "0.weight" not in text


@pytest.mark.parametrize("key", ["rollout.max_prompt_tokens", "rollout.max_response_tokens"])
def test_more_tokens_than_any_model_takes_are_refused_with_the_most(tmp_path, key):
    text = problems(tmp_path, "", f"{key}=10000000000")
    assert f"{key} (command line): 10000000000 is refused; expected" in text
    assert "16777216" in text
    load(tmp_path, "", f"{key}=16777216")


def test_an_override_below_a_value_is_refused(tmp_path):
    text = problems(tmp_path, SOURCES, "data.sources.0.weight.x=2", "data.sources.1.weight.x=1")
    assert "weight is a value in the file, not a section" in text


def test_a_broken_entry_of_a_list_is_told_with_its_own_line(tmp_path):
    text = problems(tmp_path, SOURCES.replace("weight: 3", "weight: much"))
    assert "data.sources.1.weight (line 6): 'much' is refused" in text
    text = problems(
        tmp_path, SOURCES.replace("weight: 3", "quota: 0.5\n    priority: 2"), "staleness.sampler=pods.py:x"
    )
    assert "data.sources.1.priority (line 7): is 2, which changes the order" in text


def test_what_the_command_line_replaces_has_no_line_of_the_file(tmp_path):
    text = problems(tmp_path, SOURCES, "data.sources.1={name: two, path: b.jsonl, weight: much}")
    assert "data.sources.1.weight (command line): 'much' is refused" in text


def test_a_key_given_twice_is_refused(tmp_path):
    assert "trainer.lr (line 3): is given twice, first (line 2)" in problems(
        tmp_path, "trainer:\n  lr: 1.0\n  lr: 2.0\n"
    )


def test_what_a_merge_key_brings_is_not_given_twice(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {factory: 'a:b'}\ndata: {path: a.jsonl}\nevaluation:\n  every_steps: 1\n  data:\n"
        "    a: &base {path: a.jsonl, prompt: '{q}'}\n    b:\n      <<: *base\n      path: b.jsonl\n"
    )
    found = load_config(file).evaluation.data
    assert [(one.path, one.prompt) for one in found.values()] == [("a.jsonl", "{q}"), ("b.jsonl", "{q}")]


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(tmp_path, number):
    for key in ("limits.step_s", "trainer.grad_clip", "staleness.phi_throughput", "evaluation.threshold"):
        assert f"{key} (command line): " in problems(tmp_path, "run: {steps: 1}\n", f"{key}={number}")


def test_the_branches_of_a_union_become_one_sentence(tmp_path):
    text = problems(tmp_path, "staleness: {in_flight_batches: many}")
    assert (
        "in_flight_batches (line 1): 'many' is refused; expected a valid number or 'auto' or 'all'." in text
    )


@pytest.mark.parametrize("text", ["- a\n- list", "just words", "a: [1", "\tx: 1"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    assert "run.yaml" in problems(tmp_path, text)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"There is no file nowhere\.yaml .*\)\. Give the path"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize("name", ["quickstart", "mine/quickstrat.yaml", "quickstart.yml"])
def test_a_file_of_nearly_that_name_is_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for folder in ("examples", "mine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.yaml").write_text("")
    there = "mine/quickstart.yaml" if "/" in name else "examples/quickstart.yaml"
    (tmp_path / there).write_text("")
    with pytest.raises(ConfigError, match=rf"There is no file {name} .*Did you mean {there}\? Give"):
        load_config(name)


@pytest.mark.parametrize(
    ("overrides", "field", "advice"),
    [
        (["controller.lease_s=2", "controller.beat_s=1"], "controller.lease_s", "at least 3"),
        (["rollout.group_size=1"], "rollout.group_size", "at least 2"),
        (["trainer.batch_groups=32", "trainer.minibatches=5"], "trainer.minibatches", "divisor is 4"),
        (["staleness.in_flight_batches=0.5"], "staleness.in_flight_batches", "Give 1 to 3"),
        (["staleness.in_flight_batches=4"], "staleness.in_flight_batches", "Give 1 to 3"),
        (["controller.bind=localhost"], "controller.bind", "ipc://PATH"),
        (["controller.bind=tcp://127.0.0.1:99999"], "controller.bind", "65535"),
        (["controller.bind=tcp://0.0.0.0:5555"], "controller.bind", "127.0.0.1"),
        (["controller.bind=ipc://@run"], "controller.bind", "every user of this machine could attach"),
        (["trainer.batch_groups=2", "rollout.group_size=2", "trainer.ranks=8"], "trainer.ranks", "most 4"),
    ],
)
def test_rules_between_fields_hold(tmp_path, overrides, field, advice):
    text = problems(tmp_path, "", *overrides)
    assert f"{field} (command line): " in text
    assert advice in text


@pytest.mark.parametrize("bind", ["auto", "ipc:///tmp/x", "tcp://127.0.0.1:5555", "tcp://[::1]:*"])
def test_addresses_of_this_machine_are_accepted(tmp_path, bind):
    assert load(tmp_path, "", f"controller.bind={bind}").controller.bind == bind


def test_relative_paths_are_looked_up_in_the_working_directory_then_beside_the_file(tmp_path, monkeypatch):
    beside, working = tmp_path / "beside", tmp_path / "working"
    beside.mkdir()
    working.mkdir()
    (beside / "task.py").write_text("")
    (beside / "both.py").write_text("")
    (working / "both.py").write_text("")
    (beside / "rows.jsonl").write_text("")
    monkeypatch.chdir(working)
    config = load(
        beside,
        "model: {factory: 'task.py:make', path: mine}\nreward: {function: 'both.py:f'}\ndata: {path: "
        "rows.jsonl}\nstaleness: {filter: 'package.module:keep', routing: 'nowhere.py:r'}",
    )
    assert config.model.factory == f"{beside}/task.py:make"
    assert config.model.path == "mine"
    assert config.reward.function == f"{working}/both.py:f"
    assert config.data.path == f"{beside}/rows.jsonl"
    assert config.staleness.filter == "package.module:keep"
    assert config.staleness.routing == "nowhere.py:r"


def test_the_manual_of_the_configuration_is_up_to_date():
    words = "import make_configuration as m; print(m.render() == open('configuration.md').read())"
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=ROOT / "docs", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True", "run: python docs/make_configuration.py"


@pytest.mark.parametrize(
    "url", ["hooks.test/SECRET", "http://hooks.test/a SECRET", "http://hooks.test:SECRET/", "file:///SECRET",
            "https:///SECRET", "https://hooks.test/\u00e9SECRET"],
)  # fmt: skip
def test_an_address_of_a_webhook_that_is_none_is_refused_and_not_shown(tmp_path, monkeypatch, url):
    monkeypatch.setenv("HOOK", url)
    told = problems(tmp_path, "notify: {url: '${HOOK}'}")
    assert "notify.url" in told
    assert "is no address of a webhook" in told
    assert "SECRET" not in told


def test_a_rule_says_nothing_about_a_field_that_was_refused_itself(tmp_path):
    text = problems(tmp_path, "trainer: {batch_groups: ten, minibatches: 3}")
    assert "has 1 problem:" in text


def test_a_rule_says_nothing_about_a_list_of_which_an_entry_was_refused(tmp_path):
    sources = "[{name: short, path: a.jsonl, epochs: 1}, {name: long, path: b.jsonl}]"
    stages = "[{from_step: 0, weights: {short: 1}}]"
    said = problems(tmp_path, f"data: {{schedule: stages, sources: {sources}, stages: {stages}}}")
    assert "has 1 problem:\n  data.sources.0.epochs" in said
    assert "which is no source" not in said


def test_the_coefficients_of_a_profile_take_the_place_of_its_file(tmp_path):
    (tmp_path / "fast.json").write_text(dump_coefficients(PUBLISHED["14b-tp1"]))
    (tmp_path / "run.yaml").write_text("staleness: {cost_model: fast.json}")
    config = load_config(str(tmp_path / "run.yaml"))
    (tmp_path / "fast.json").unlink()
    assert RunState(config, load_strategies(config)).coefficients == PUBLISHED["14b-tp1"]


def test_a_profile_in_the_working_directory_is_found_and_comes_before_one_beside_the_file(
    tmp_path, monkeypatch
):
    """`launch.py profile RUN -o FILE.json` writes it there, wherever the configuration lies."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "run.yaml").write_text("staleness: {cost_model: fast.json}")
    monkeypatch.chdir(tmp_path)
    Path("fast.json").write_text(dump_coefficients(PUBLISHED["14b-tp1"]))
    for _ in range(2):
        config = load_config("conf/run.yaml")
        assert RunState(config, load_strategies(config)).coefficients == PUBLISHED["14b-tp1"]
        Path("conf", "fast.json").write_text(dump_coefficients(PUBLISHED["7b-tp1"]))


def test_a_cost_model_that_is_neither_a_name_nor_a_file_is_refused(tmp_path):
    assert "nowhere.json cannot be read" in problems(tmp_path, "staleness: {cost_model: nowhere.json}")


def test_a_checkpoint_of_another_run_becomes_the_model_of_a_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "runs" / "old" / "checkpoints" / "step_20"
    (checkpoint / "trainer").mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    file = tmp_path / "new.yaml"
    file.write_text("run: {name: new}\nmodel: {factory: 'task.py:make'}\n")
    for place in ("runs/old/checkpoints/step_20", str(checkpoint)):
        config = load_config(str(file), [f"run.resume={place}"])
        assert (config.model.path, config.model.factory) == (str(checkpoint), None)
        assert config.run.resume == "auto"  # so that the same command goes on with the new run
    with pytest.raises(ConfigError, match=r"belongs to the run 'old' itself.*run\.resume=auto"):
        load_config(str(file), [f"run.resume={checkpoint}", "run.name=old"])
    assert load_config(str(file), ["run.resume=runs/old"]).run.resume == "runs/old"


@pytest.mark.parametrize("word", ["auto", "never"])
def test_a_checkpoint_whose_folder_has_the_name_of_a_word_is_not_meant(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / word / "trainer").mkdir(parents=True)
    for name in ("config.json", "adapter_config.json"):
        (tmp_path / word / name).write_text("{}")
        (tmp_path / "new.yaml").write_text("model: {factory: 'task.py:make'}\n")
        config = load_config("new.yaml", [f"run.resume={word}"])
        assert (config.run.resume, config.model.factory) == (word, "task.py:make")


def test_an_override_reaches_into_a_section_with_nothing_below_it(tmp_path):
    (tmp_path / "run.yaml").write_text("trainer:\n  lora:\n    # rank: 8\n")
    assert load_config(tmp_path / "run.yaml", ["trainer.lora.rank=16"]).trainer.lora.rank == 16
