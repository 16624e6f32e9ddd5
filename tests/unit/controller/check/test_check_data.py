"""What `check` says of data, prompts and the reward by looking at the first rows."""

import importlib
import json
import os
from pathlib import Path

import pytest

from controller.check.data import FIRST_ROWS
from controller.check.problems import check
from controller.config.load import load_config
from controller.data.held_out import read_held_out
from protocol.errors import ConfigError
from protocol.rewards.shapes import Signature, offered_names
from tests.support.small_project import CHAT_ROWS, TEMPLATE, make_project
from workers.reward import functions
from workers.reward.functions import ScoreRequest


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    def ask(module: str, question: object, *, limit_s: float) -> object:
        del limit_s
        return importlib.import_module(module).answer(json.loads(json.dumps(question)))

    for name in ("plugins", "prompts", "reward"):
        monkeypatch.setattr(f"controller.check.{name}.ask", ask)


def found(level: str, *overrides: str, **how: bool) -> list[str]:
    findings = check(load_config("run.yaml", overrides), **how)
    return [f"{f.field}: {f.text}" for f in findings if f.level == level]


def rows(project: Path, *rows: dict[str, object]) -> None:
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# -- data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.arrow", b"ARROW1\0\0", "is Arrow, which is not read"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08\0", "is compressed by gzip, which is not read"),
        ("rows.json", b'{\n  "prompt": "1+1"\n}\n', "an object over several lines"),
        ("rows.json", b'[{"prompt": "1+1"}]', "is one JSON array"),
    ],
)
def test_other_formats_are_named_for_what_they_are(project, name, content, words):
    (project / name).write_bytes(content)
    [text] = found("error", f"data.path={name}")
    assert words in text
    assert "expected JSONL, one object per line" in text


def test_a_conversion_never_writes_over_what_it_reads(project):
    (project / "rows.jsonl").write_bytes(b'[{"prompt": "1+1"}]')
    [text] = found("error")
    assert text.endswith("rows_rows.jsonl")


def test_a_folder_that_is_no_data_set_is_told_by_what_it_holds(project):
    (project / "folder").mkdir()
    (project / "folder" / "train-0.arrow").write_bytes(b"ARROW1")
    [text] = found("error", "data.path=folder")
    assert "save_to_disk did not write (no dataset_info.json); it holds train-0.arrow" in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"splits": []}', '{"splits": 3}'])
def test_a_saved_dictionary_without_splits_is_told(project, monkeypatch, content):
    monkeypatch.setattr("controller.check.data.find_module", lambda name: name)
    (project / "folder").mkdir()
    (project / "folder" / "dataset_dict.json").write_text(content)
    [text] = found("error", "data.path=folder")
    assert "folder' holds a dataset_dict.json that names no splits" in text


@pytest.mark.parametrize("key", ["data", "evaluation.data.held_out"])
def test_a_filter_that_leaves_none_of_the_first_rows_is_no_fault(project, key):
    levels = ["easy"] * 300 + ["hard"]
    text = "".join(json.dumps({"prompt": "p", "answer": "a", "level": level}) + "\n" for level in levels)
    (project / "by_level.jsonl").write_text(text)
    asked = [f"{key}.path=by_level.jsonl", f"evaluation.every_steps={int(key != 'data')}"]
    assert found("error", *asked, f"{key}.where={{level: [hard]}}") == []
    [told] = found("error", *asked, f"{key}.where={{level: [none]}}")
    assert told.startswith(f"{key}.path: None of 301 rows")


def test_keys_of_the_hub_are_said_to_have_no_effect_on_a_file_or_a_set(project):
    rows(project, {"prompt": "p", "answer": "a"})
    [told] = [text for text in found("note", "data.subset=main") if "subset" in text]
    assert told.startswith("data.subset: is 'main', which has no effect: ")
    held_out = ["evaluation.every_steps=1", "evaluation.data={x: {path: 'reasoning_gym:lcm', split: test}}"]
    [told] = [text for text in found("note", *held_out) if "split" in text]
    assert told == "evaluation.data.x.split: is 'test', which has no effect: reasoning_gym:lcm has no splits."


def test_a_word_for_a_chat_template_is_said_to_be_no_boolean(project):
    rows(project, {"prompt": "p", "answer": "a"})
    asked = "data.chat_template_kwargs={enable_thinking: no, effort: low, other: false}"
    [told] = [text for text in found("note", asked) if "chat_template_kwargs" in text]
    assert told.startswith("data.chat_template_kwargs.enable_thinking: is the text 'no', and no boolean")
    assert told.endswith("write false.")


@pytest.mark.parametrize(("unusable", "usable", "errors"), [(2, 0, 1), (300, 0, 1), (300, 1, 0)])
def test_data_without_a_row_that_can_be_used_is_an_error(project, unusable, usable, errors):
    rows(project, *[{"prompt": None, "answer": "a"}] * unusable, *[{"prompt": "p", "answer": "a"}] * usable)
    told = found("error")
    assert ["can be used" in text for text in told] == [True] * errors


@pytest.mark.parametrize("sampler", ["in_order", "similar_length"])
def test_a_pipe_is_an_error_in_words(project, sampler):
    os.mkfifo(project / "pipe.jsonl")
    [text] = found("error", "data.path=pipe.jsonl", f"staleness.sampler={sampler}")
    assert "pipe.jsonl cannot be read: it is a pipe or a device" in text


def test_a_name_of_the_hub_is_answered_with_how_to_save_it(project, monkeypatch):
    monkeypatch.setattr("controller.check.data.find_module", lambda name: name)
    text = next(text for text in found("note", "data.path=openai/gsm8k") if "Hub" in text)
    assert "load_dataset('openai/gsm8k', split='train').save_to_disk('gsm8k')" in text
    assert "Hub" not in found("error", "data.path=folder/rows.jsonl")[0]


def test_no_more_than_the_first_rows_are_read(project):
    good = '{"prompt": "1+1", "answer": "2"}\n'
    (project / "rows.jsonl").write_text(good * FIRST_ROWS + "not read\n")
    assert found("error") == []
    (project / "rows.jsonl").write_text(good * (FIRST_ROWS - 1) + "read\n")
    assert f"rows.jsonl, line {FIRST_ROWS} is not JSON" in found("error")[0]


def test_messages_of_another_form_are_found_by_their_line(project):
    talk = [{"from": "human", "value": "1+1"}]  # ShareGPT
    rows(project, {"prompt": "1+1", "answer": "2"}, {"prompt": talk, "answer": "2"})
    [text] = found("error")
    assert "rows.jsonl, line 2 has" in text
    assert "`role` and `content`" in text


def test_a_function_of_prompts_that_gives_nothing_is_found(project):
    (project / "mine.py").write_text("def prompts(*, seed):\n    rows = [{'prompt': '1+1'}]\n")
    [text] = found("error", "data.path=mine.py:prompts")
    assert "mine.py, line 1) has no `return` with a value and no `yield`" in text


# -- epochs --------------------------------------------------------------------------------------------------


def steps_of_data(*overrides: str, level: str = "note") -> list[str]:
    found_here = found(level, "trainer.batch_groups=4", *overrides, is_thorough=True)
    return [text for text in found_here if "groups a step" in text]


def test_passes_that_do_not_come_to_run_steps_are_noted(project, in_this_process):
    rows(project, *[{"prompt": "1+1", "answer": "2"}] * (FIRST_ROWS + 2))
    assert steps_of_data("data.epochs=3", "run.steps=100") == [
        "run.steps: 258 rows x 3 epochs / 4 groups a step = 193 steps at most, and run.steps is 100: "
        "whichever comes first ends the run."
    ]
    assert "193 steps at most, and run.steps is 1,000" in steps_of_data("data.epochs=3", "run.steps=1000")[0]
    assert steps_of_data("data.epochs=3", "run.steps=193") == []
    assert steps_of_data("data.epochs=0") == []
    assert found("note", "data.epochs=3") == found("note", "data.epochs=3", "run.steps=193")  # not thorough


def test_fewer_rows_than_a_batch_are_an_error(project, in_this_process):
    [text] = steps_of_data("data.epochs=1", level="error")  # of three rows
    assert text.startswith("data.epochs: 3 rows x 1 epoch / 4 groups a step is less than one step")


def test_rows_of_all_sources_are_counted_and_those_of_a_function_are_not_known(project, in_this_process):
    (project / "more.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 9)
    both = "data.sources=[{path: rows.jsonl}, {path: more.jsonl}]"
    [text] = steps_of_data("data.epochs=2", both, 'data.path=""')
    assert "12 rows x 2 epochs / 4 groups a step = 6 steps" in text
    (project / "mine.py").write_text("def prompts(*, seed):\n    yield {'prompt': '1+1', 'answer': '2'}\n")
    assert steps_of_data("data.epochs=1", "data.path=mine.py:prompts") == []


# -- prompts and tokenizer -----------------------------------------------------------------------------------


def test_text_for_a_chat_model_is_noted_and_messages_are_not(tmp_path, monkeypatch):
    make_project(tmp_path, chat_template=TEMPLATE)
    monkeypatch.chdir(tmp_path)
    assert [text for text in found("note") if "tokenized as they are" in text and '"role": "user"' in text]
    (tmp_path / "rows.jsonl").write_text(CHAT_ROWS)
    assert not [text for text in found("note") if "tokenized as they are" in text]
    assert found("error") == []


def test_a_template_in_a_file_of_its_own_counts(project):
    (project / "rows.jsonl").write_text(CHAT_ROWS)
    assert "no chat template" in found("error")[0]
    (project / "model" / "chat_template.jinja").write_text(TEMPLATE)
    assert found("error") == []


def test_some_long_prompts_are_noted_and_all_are_an_error(project, in_this_process):
    rows(project, {"prompt": "1+1", "answer": "2"}, {"prompt": "1+1" * 30, "answer": "2"})
    [text] = [text for text in found("note", is_thorough=True) if "max_prompt_tokens: " in text]
    assert "1 of the first 2 prompts" in text
    assert "has 90 tokens; `rollout.max_prompt_tokens` allows 16" in text
    rows(project, {"prompt": "1+1" * 30, "answer": "2"})
    [text] = found("error", is_thorough=True)
    assert text.startswith("rollout.max_prompt_tokens: all of the first 1 prompts")


def test_responses_of_supervised_training_are_measured_too(project, in_this_process):
    rows(project, {"prompt": "1+1", "response": "2" * 40})
    [text] = found("error", "trainer.algorithm=sft", is_thorough=True)
    assert text.startswith("rollout.max_response_tokens: all of the first 1 prompts")


def test_a_chat_template_that_never_writes_a_stop_token_is_noted_for_supervised_training(
    tmp_path, monkeypatch, in_this_process
):
    make_project(tmp_path, chat_template=TEMPLATE)
    monkeypatch.chdir(tmp_path)
    talk = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    rows(tmp_path, {"messages": talk})

    def endless() -> list[str]:
        notes = found("note", "trainer.algorithm=sft", is_thorough=True)
        return [text for text in notes if "no response ends in a token that engines stop at" in text]

    [text] = endless()
    assert text.startswith("model.path: of the first 1 rows of ")
    assert "('<eos>')" in text
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 44]}))
    assert endless() == []  # the answer ends in `2`, the token 2


def test_a_model_that_is_not_made_yet_is_said_to_be_unknown(project):
    (project / "mine.py").write_text("def make(folder, *, seed, progress): ...\n")
    notes = found("note", "model.factory=mine.py:make", is_thorough=True)
    assert any("how long prompts are in tokens is not known yet" in text for text in notes)


def test_the_tokenizer_is_loaded_in_a_process_of_its_own(project):
    """The one test of it that starts one; the others ask in this process."""
    [text] = found("error", "rollout.max_prompt_tokens=2", is_thorough=True)
    assert "The prompt has 4 tokens; `rollout.max_prompt_tokens` allows 2" in text


# -- rewards -------------------------------------------------------------------------------------------------


def test_the_names_that_a_check_offers_are_those_that_a_run_offers():
    row = {"prompt": "1+1", "data_source": "sums", "reward_model": {"ground_truth": "2"}}
    request = ScoreRequest(0, row, "1+1", [1], ["2"], [[2]], ["stop"])
    member, solution = (
        set(offer(request, 0)) for offer in (functions._offer_member, functions._offer_solution)
    )
    assert offered_names(Signature((), ("completion",), True), row) == member
    assert offered_names(Signature((), ("solution_str",), True), row) == solution
    assert "ground_truth" not in offered_names(Signature((), ("solution_str",), True), {"prompt": "1+1"})


async def test_the_names_offered_to_a_function_of_groups_are_those_of_a_run_too():
    seen: dict[str, object] = {}

    def reward(completions, **more):
        seen.update(more, completions=completions)
        return [1.0]

    row = {"prompt": "1+1", "answer": "2"}
    await functions.adapt(reward)(ScoreRequest(0, row, "1+1", [1], ["2"], [[2]], ["stop"]))
    assert offered_names(Signature((), ("completions",), True), row) == set(seen)


def test_columns_that_some_rows_lack_are_noted(project):
    rows(project, {"prompt": "1+1", "answer": "2"}, {"prompt": "1+2"}, {"prompt": "1+3"})
    [text] = [text for text in found("note") if text.startswith("reward.function")]
    assert "rewards.py, line 1) cannot score 2 of the first 3 rows: it asks for `answer`" in text


def test_held_out_rows_are_looked_at_with_the_function_that_scores_them(project):
    (project / "test.jsonl").write_text('{"prompt": "1+1", "solution": "2"}\n')
    held_out = ["evaluation.every_steps=5", "evaluation.data={test: {path: test.jsonl}}"]
    [text] = found("error", *held_out)
    assert text.startswith("reward.function: score (")
    assert text.endswith("(rows of evaluation.data.test)")
    (project / "judge.py").write_text("def judge(completion, solution):\n    return 1.0\n")
    assert found("error", *held_out, "evaluation.reward_function=judge.py:judge") == []
    (project / "judge.py").write_text("def judge(completion, slution):\n    return 1.0\n")
    [text] = found("error", *held_out, "evaluation.reward_function=judge.py:judge")
    assert text.startswith("evaluation.reward_function: judge (")


def test_held_out_rows_are_read_as_a_run_reads_them_before_it_begins(project):
    lines = ['{"prompt": "1+1", "answer": "2", "kind": "plus"}', '{"prompt": "1-1", "answer": "0"}']
    (project / "test.jsonl").write_text("\n".join(lines))
    held_out = ["evaluation.every_steps=5", "evaluation.data={test: {path: test.jsonl, source_column: kind}}"]
    [text] = found("error", *held_out)
    assert text.startswith(
        "evaluation.data.test.source_column: Row 1 of evaluation.data.test has None as its "
    )
    with pytest.raises(ConfigError, match=r"Row 1 of evaluation\.data\.test has None"):
        read_held_out(load_config("run.yaml", held_out))
    assert found("error", *held_out, "evaluation.data.test.max_prompts=1") == []
    (project / "test.jsonl").write_text(f'{lines[0]}\n{{"prompt": "", "answer": "2", "kind": "plus"}}')
    [text] = found("error", *held_out)
    assert text.startswith("evaluation.data.test.path: ")
    assert "line 2" in text
    assert "left out" not in text
    with pytest.raises(ConfigError, match="line 2"):
        read_held_out(load_config("run.yaml", held_out))
    assert found("error", *held_out, "evaluation.data.test.max_prompts=1") == []


@pytest.mark.parametrize(
    "code",
    [
        "import functools\n@functools.cache\ndef score(completion, answr):\n    return 1.0\n",
        "class Judge:\n    def __call__(self, completion):\n        return 1.0\nscore = Judge()\n",
    ],
)
def test_what_cannot_be_read_is_not_refused_and_said_to_be_unknown(project, code, in_this_process):
    (project / "rewards.py").write_text(code)
    assert found("error") == []
    assert any("cannot be read without importing it" in text for text in found("note", is_thorough=True))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None if completion else 1.0", "returned None of type NoneType for member 0"),
        ("return compare(completion)", "raised NameError: name 'compare' is not defined.\n  File \""),
        ("import time; time.sleep(600); return 1", "took longer than `reward.timeout_s` = 0.2 s"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
    ],
)
def test_a_reward_is_called_once_if_that_is_asked_for(project, body, words, in_this_process):
    (project / "rewards.py").write_text(f"def score(completion, answer):\n    {body}\n")
    [text] = found("error", "reward.timeout_s=0.2", calls_reward=True)
    assert words in text
    assert "functions.py" not in text


def test_a_reward_that_works_is_told_with_what_it_gave(project, in_this_process):
    code = "async def score(completion, answer):\n    return len(completion) / 100\n"
    (project / "rewards.py").write_text(code)
    notes = found("note", calls_reward=True)
    assert any(text.endswith("one of them empty, it gave 0.45, 0.") for text in notes)


def test_a_reward_is_called_on_a_row_of_a_function_too(project, in_this_process):
    code = "def prompts(*, seed):\n    while True:\n        yield {'question': '1+1', 'answer': seed}\n"
    (project / "mine.py").write_text(code)
    (project / "rewards.py").write_text("def score(completion, prompt, answer):\n    return answer\n")
    changes = ["data.path=mine.py:prompts", "data.columns={prompt: question}", "run.seed=7"]
    assert any(text.endswith("it gave 7, 7.") for text in found("note", *changes, calls_reward=True))


# -- plug-ins ------------------------------------------------------------------------------------------------


def test_a_strategy_that_never_answers_or_ends_the_process_is_an_error(project, monkeypatch):
    monkeypatch.setattr("controller.check.plugins.TRIAL_S", 0.5)
    (project / "mine.py").write_text("def hang(rewards):\n    while True: pass\n\nimport os\n")
    with (project / "mine.py").open("a") as file:
        file.write("def leave(rewards):\n    os._exit(3)\n")
    [text] = found("error", "staleness.filter=mine.py:hang")
    assert "mine.py:hang was called on made-up arguments, and the process took longer than 0.5 s" in text
    monkeypatch.setattr("controller.check.plugins.TRIAL_S", 60.0)
    [text] = found("error", "staleness.filter=mine.py:leave")
    assert "the process ended with exit code 3" in text


def test_a_misspelt_name_of_what_is_built_in_leads_to_it(project):
    [text] = found("error", "staleness.filter=zero_varaince")
    assert "neither built in (none, zero_variance) nor an import path" in text
    assert "Did you mean zero_variance?" in text
    [text] = found("error", "trainer.engine=deepspeed")
    assert "neither built in (fsdp)" in text


def test_a_model_of_the_hub_is_answered_with_the_command_that_downloads_it(project):
    [text] = found("error", "model.path=Qwen/Qwen3-0.6B")
    assert "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`" in text


def test_a_factory_that_no_run_could_call_is_found(project):
    (project / "mine.py").write_text("def make(folder, seed):\n    return 1\n")
    [text] = found("error", "model.factory=mine.py:make", "model.path=made")
    assert "mine.py, line 1) takes no `progress`; it is called as make(directory, *, seed, progress)" in text
