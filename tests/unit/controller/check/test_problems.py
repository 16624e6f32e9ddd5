"""Every check has an example that it finds, and leaves a sound configuration alone."""

import importlib
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from controller.check.problems import check
from controller.check.source import find_import_path
from controller.config.load import load_config
from controller.config.models import Config
from tests.support.small_project import make_project

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def sound(tmp_path, monkeypatch) -> Path:
    """A folder with a task, data, a model and a configuration; the working directory."""
    monkeypatch.chdir(tmp_path)
    task = "raise SystemExit('imported')\nasync def reward(completion): return 1.0\n"
    (tmp_path / "task.py").write_text(task)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    model = tmp_path / "model"
    model.mkdir()
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    (model / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 1024}))
    (model / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4000))
    return tmp_path


def config(**sections: dict) -> Config:
    tree = {"data": {"path": "rows.jsonl"}, "reward": {"function": "task.py:reward"}} | sections
    return Config.model_validate(tree)


def errors(**sections: dict) -> list[str]:
    return [f"{f.field}: {f.text}" for f in check(config(**sections)) if f.level == "error"]


def notes(**sections: dict) -> list[str]:
    return [f"{f.field}: {f.text}" for f in check(config(**sections)) if f.level == "note"]


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_a_sound_configuration_has_no_errors_and_the_users_code_is_not_run(sound):
    assert errors() == []


def test_what_is_wrong_with_the_model_is_said_once_for_all_sources(tmp_path, monkeypatch):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("model", "generation_config.json").write_text(json.dumps({"eos_token_id": "x"}))
    Path("other.jsonl").write_text(Path("rows.jsonl").read_text())
    sources = "data.sources=[{name: a, path: rows.jsonl}, {name: b, path: other.jsonl}]"
    found = check(load_config("run.yaml", [sources, 'data.path=""']), is_thorough=True)
    [text] = [one.text for one in found if one.level == "error"]
    assert "has 'x' as `eos_token_id`" in text


def test_the_quickstart_has_no_errors(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = check(load_config(str(ROOT / "examples" / "quickstart.yaml")))
    assert [finding for finding in found if finding.level == "error"] == []


def test_a_missing_model_without_a_factory_is_found(sound):
    assert "model.path: there is no model at" in only(errors(model={"path": "nowhere"}))
    task = "def reward(completion): return 1.0\ndef make(folder, *, seed, progress): ..."
    (sound / "task.py").write_text(task)
    assert errors(model={"path": "nowhere", "factory": "task.py:make"}) == []


def test_a_model_that_cannot_be_read_is_found(sound):
    (sound / "model" / "config.json").write_text("{")
    assert "cannot be read" in only(errors())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[1, 2]", "is a list; expected an object"),
        (
            '{"max_position_embeddings": "many"}',
            "`max_position_embeddings` in config.json is 'many'; expected",
        ),
        ('{"num_key_value_heads": [2, 4]}', "`num_key_value_heads` in config.json is [2, 4]; expected"),
        ('{"text_config": {"num_hidden_layers": -1}}', "`num_hidden_layers` in config.json is -1; expected"),
        ('{"architectures": "Qwen3"}', "`architectures` in config.json is 'Qwen3'; expected a list of names"),
        ('{"full_attention_interval": true}', "`full_attention_interval` in config.json is True; expected"),
    ],
)
def test_a_model_whose_counts_are_none_is_found(sound, written, said):
    (sound / "model" / "config.json").write_text(written)
    text = only(errors())
    assert "model cannot be read: " in text
    assert said in text


def test_a_count_may_be_null_or_missing(sound):
    (sound / "model" / "config.json").write_text('{"num_hidden_layers": null, "num_experts": 0}')
    assert errors() == []


def test_responses_beyond_the_models_context_are_found(sound):
    text = only(errors(rollout={"max_prompt_tokens": 512, "max_response_tokens": 513}))
    assert "1025, but the model has 1024 positions" in text


def test_a_run_goes_on_with_the_model_that_it_made_too_small_for_the_longest_prompts(sound):
    """Nobody knew the model when the run first started, and its lengths cannot change any more."""
    (sound / "task.py").write_text(
        "def make(directory, *, seed, progress): ...\nasync def reward(completion): return 1.0\n"
    )
    made = sound / "runs" / "run"
    made.mkdir(parents=True)
    (sound / "model").rename(made / "model")
    model = {"factory": "task.py:make"}
    lengths = {"max_prompt_tokens": 512, "max_response_tokens": 513}
    assert errors(model=model, rollout=lengths) == []
    assert any(
        "A prompt of more than 511 tokens is set aside" in n for n in notes(model=model, rollout=lengths)
    )
    text = only(errors(model=model, rollout={"max_response_tokens": 1024}))
    assert "the model has 1024 positions; lower either" in text


def test_memory_is_estimated_and_too_much_of_it_found(sound):
    assert any("1 instances of 4.0 kB weights" in n or "weights and up to" in n for n in notes())
    huge = {"max_running": 10**9, "device": "cpu"}
    assert "This machine has" in only(errors(rollout=huge, trainer={"device": "cpu"}))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "has no rows; expected at least one. Name another source; a run that goes on needs the data"),
        ("not json\n", "is not JSON"),
        ("[1]\n", "is a list"),
        ('{"question": "1+1"}\n', "has no column 'prompt'; it has 'question'"),
    ],
)
def test_bad_first_rows_are_found(sound, rows, said):
    (sound / "rows.jsonl").write_text(rows)
    assert said in only(errors())


def test_mapped_columns_are_looked_up(sound):
    (sound / "rows.jsonl").write_text('{"question": "1+1"}\n')
    columns = {"prompt": "question", "answer": "solution"}
    text = only(errors(data={"path": "rows.jsonl", "columns": columns}))
    assert "data.columns.answer" in text
    assert "'solution'" in text


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "is empty"), ("nowhere.jsonl", "no file or folder"), ("task.py:prompts", "defines no prompts")],
)
def test_missing_data_is_found(sound, path, said):
    assert said in only(errors(data={"path": path}))


def test_a_saved_dataset_needs_its_package(sound, monkeypatch):
    (sound / "saved").mkdir()
    monkeypatch.setattr(sys, "path", [])
    assert any("pip install datasets" in text for text in errors(data={"path": "saved"}))


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("reward", "function", "task.py:rewrad"),
        ("reward", "function", ""),
        ("rollout", "engine", "vlm"),
        ("staleness", "routing", "nowhere.py:route"),
        ("staleness", "synchronization", "no.such.module:plan"),
        ("staleness", "filter", "zero_varaince"),
        ("model", "factory", "task.py:make"),
    ],
)
def test_bad_import_paths_are_found(sound, section, field, value):
    assert only(errors(**{section: {field: value}})).startswith(f"{section}.{field}: ")


def test_a_tracker_needs_its_package(sound, monkeypatch):
    (sound / "wandb").mkdir()  # what a run of another script leaves, which is no package
    monkeypatch.setattr(sys, "path", [str(sound)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    named = {"trackers": ("wandb", "tensorboard")}
    assert errors(logging=named) == []  # the run goes on without it
    assert sum("pip install wandb" in text for text in notes(logging=named)) == 1
    (sound / "wandb/__init__.py").write_text("raise SystemExit('imported')\n")
    importlib.invalidate_caches()
    assert not any("pip install wandb" in text for text in notes(logging=named))


def test_modules_are_found_without_importing_them():
    assert find_import_path("json.decoder:JSONDecoder") is None
    assert "defines no Decoder" in str(find_import_path("json.decoder:Decoder"))
    assert "there is no module json.nothing" in str(find_import_path("json.nothing:x"))
    assert find_import_path("math:sqrt") is None


def test_a_file_that_is_not_python_is_found(sound):
    (sound / "task.py").write_text("def reward(:\n")
    assert "is not valid Python" in only(errors())


def test_rules_between_fields_are_checked_for_configurations_made_in_code_too(sound):
    assert "trainer.minibatches" in only(errors(trainer={"batch_groups": 10, "minibatches": 4}))
    assert "in_flight_batches" in only(errors(staleness={"in_flight_batches": 0.5}))


@pytest.mark.parametrize(
    ("told", "sections"),
    [
        ("run.name: ", {"run": {"name": "a\nb"}}),
        ("controller.bind: The folder of the socket", {"controller": {"bind": "ipc:///nonexistent/sock"}}),
        ("controller.bind: The socket path", {"controller": {"bind": f"ipc:///tmp/{120 * 'a'}"}}),
        ("weights.directory: rows.jsonl/x cannot be written", {"weights": {"directory": "rows.jsonl/x"}}),
    ],
)
def test_a_place_that_the_start_would_refuse_is_found(sound, told, sections):
    assert told in only(errors(**sections))


def test_a_name_beside_which_no_lock_fits_is_found(sound):
    assert "run.name: has 250 bytes; expected 249" in only(errors(run={"name": 250 * "n"}))
    assert not errors(run={"name": 249 * "n"})


@pytest.mark.parametrize("place", ["random.py", "token/__init__.py"])
def test_a_file_that_hides_a_module_of_python_is_noted(sound, place):
    (sound / place).parent.mkdir(exist_ok=True)
    (sound / place).touch()
    noted = [finding.text for finding in check(config()) if finding.field == "reward.function"]
    assert f"{sound / place} hides Python's own module" in noted[0]


def test_a_run_directory_below_a_file_is_found(sound):
    (sound / "runs").write_text("a file")
    assert "run.dir: " in only(errors())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_run_directory_is_found(sound):
    (sound / "runs").mkdir(mode=0o500)
    assert "run.dir: " in only(errors())


def test_a_taken_port_is_found(sound):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert only(errors(controller={"bind": address})).endswith("Choose another port, or `auto`.")
        (sound / "runs" / "run").mkdir(parents=True)
        (sound / "runs" / "run" / "run.db").touch()
        found = [text for text in errors(controller={"bind": address}) if "cannot be bound" in text]
        assert "Is it this run, at work already? `launch.py status runs/run`" in only(found)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rollout": {"sampling": {"temperature": 0.0}}}, "nothing can be learnt"),
        ({"rollout": {"instances": 0}}, "until rollout workers attach"),
        ({"staleness": {"max_staleness": 0}}, "take turns"),
        ({"rollout": {"threads": 4096}}, "cores"),
        ({}, "up to 768 trajectories are in the system"),
    ],
)
def test_what_a_person_may_want_to_change_is_noted(sound, sections, said):
    assert any(said in text for text in notes(**sections))


@pytest.mark.parametrize(
    ("strategy", "word"), [("areal", "does not promise"), ("roll_flash", "dropped"), ("greedy", None)]
)
def test_rules_that_promise_no_bound_or_drop_groups_say_so(strategy, word):
    config = Config.model_validate({"staleness": {"strategy": strategy}})
    found = [finding.text for finding in check(config) if finding.level == "note"]
    assert any(word in text for text in found) if word else not any("promise" in text for text in found)


HEADER = b'{"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}'
CUT_OFF = (len(HEADER).to_bytes(8, "little") + HEADER + bytes(40))[:100]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n",
            "a pointer of Git LFS",
        ),
        (b"", "Expecting value"),
        (b"\x02" + bytes(7) + b"[]", "its header tells no shapes"),
        (b"\x08" + bytes(7) + b'{"w": 1}', "its header tells no shapes"),
        (CUT_OFF, "is cut off: it has 100 bytes, and its header tells 111"),
    ],
)
def test_a_file_of_weights_that_is_none_is_named(content, words, sound):
    (sound / "model" / "model.safetensors").write_bytes(content)
    found = only(errors())
    assert found.startswith("model.path: ")
    assert words in found


def test_rows_of_an_agent_need_no_prompt_whatever_the_model(sound, answered_here):
    (sound / "rows.jsonl").write_text('{"question": "1+1"}\n{"prompt": "2+2"}\n')
    (sound / "task.py").write_text("async def episode(policy, row): return 1.0\n")
    tree = config(reward={"function": ""}, agent={"function": "task.py:episode", "renderer": "plain"})
    found = check(tree, is_thorough=True)
    assert [one for one in found if "prompt" in one.text and one.field.startswith(("data", "rollout"))] == []
    assert [one for one in found if one.level == "error" and one.field != "model.path"] == []
