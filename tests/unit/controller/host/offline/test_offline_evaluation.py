"""What is evaluated, on which rows, and what figures come of it."""

import json

import pytest

from controller.config.models import Config
from controller.host.offline import offline_evaluation as module
from controller.host.offline.offline_evaluation import Evaluee, evaluate
from protocol.errors import ConfigError


@pytest.fixture
def config(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(5)))
    (tmp_path / "runs" / "one" / "checkpoints" / "step_2").mkdir(parents=True)
    return Config.model_validate(
        {
            "run": {"dir": str(tmp_path / "runs"), "name": "one", "steps": 2},
            "data": {"path": str(rows), "shuffle": False},
            "evaluation": {"samples": 2},
        }
    )


@pytest.fixture
def asked(monkeypatch):
    """The questions to the process that evaluates; it answers the first row, and fails at the others."""
    questions = []

    def ask(name, question, *, limit_s, inherited):
        questions.append(question)
        first = {"rewards": [1.0, 0.0], "lengths": [3, 4], "parts": [], "cut": 1, "turns": [1, 1]}
        first |= {"forks": ["edited"], "overhead_ms": [3.0, 1.0, 2.0]}
        return {"rows": [first, *[{"failed": "no"} for _ in question["rows"][1:]]]}

    monkeypatch.setattr(module, "ask", ask)
    return questions


def test_the_figures_are_those_of_an_evaluation(config, asked):
    line = evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=3)
    assert (line["prompts"], line["failed"], line["samples"]) == (1, 2, 2)
    assert (line["pass@1"], line["pass@2"], line["reward/mean"]) == (0.5, 1.0, 0.5)
    assert line["failures"][0] == "data, prompt 1: no"
    assert line["forks/edited"] == 0.5
    assert (line["turn/overhead_ms/p50"], line["turn/overhead_ms/p99"]) == (2.0, 3.0)
    assert [row["answer"] for row in asked[0]["rows"]] == ["0", "1", "2"]
    assert (asked[0]["base_url"], asked[0]["model"], asked[0]["directory"]) == ("http://here/v1", "small", "")


def test_no_row_counts_twice_if_more_are_asked_for_than_there_are(config, asked):
    evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=7)
    assert [row["answer"] for row in asked[0]["rows"]] == ["0", "1", "2", "3", "4"]


def test_of_several_sources_as_many_rows_each_are_read(config, asked, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text('{"prompt": "few?", "answer": "9"}\n')
    sources = [{"path": config.data.path}, {"path": str(few), "name": "little"}]
    data = {"sources": sources, "shuffle": False}
    config = Config.model_validate(config.model_dump() | {"data": data}, strict=False)
    line = evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=5)
    assert [row["source"] for row in asked[0]["rows"]] == ["rows", "little", "rows", "rows"]
    assert line["failures"][0] == "little, prompt 1: no"
    few.unlink()
    with pytest.raises(ConfigError, match=r"data\.sources\.1 \(little\), called `data` here"):
        evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=5)


def test_held_out_rows_go_before_those_of_training(config, asked, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "held out"}\n')
    held_out = {"data": {"set": {"path": str(other)}}, "samples": 1}
    config = Config.model_validate(config.model_dump() | {"evaluation": held_out}, strict=False)
    evaluate(config, Evaluee(base_url="http://here/v1", model="small"))
    assert [row["prompt"] for row in asked[0]["rows"]] == ["held out"]


def test_no_more_held_out_rows_are_read_than_are_asked_for(config, asked, tmp_path):
    words = "def prompts(*, seed):\n    yield from ({'prompt': str(n)} for n in range(seed, 9**9))\n"
    (tmp_path / "endless_rows.py").write_text(words)
    held_out = {"path": f"{tmp_path}/endless_rows.py:prompts", "seed": 1}
    evaluation = {"data": {"a": {**held_out, "max_prompts": 2}, "b": held_out}}
    config = Config.model_validate({"run": config.run.model_dump(), "evaluation": evaluation})
    evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=3)
    assert [row["prompt"] for row in asked[0]["rows"]] == ["1", "2", "1"]


def test_the_newest_whole_checkpoint_is_meant_by_none(config, asked, tmp_path):
    step = tmp_path / "runs" / "one" / "checkpoints" / "step_2"
    with pytest.raises(ConfigError, match=r"holds no model.*--checkpoint DIR"):
        evaluate(config, Evaluee(), rows=1)
    (step / "config.json").write_text("{}")
    (step / ".complete").write_text("")
    evaluate(config, Evaluee(), rows=1)
    assert asked[-1]["directory"] == str(step)


@pytest.mark.parametrize(
    ("evaluee", "words"),
    [
        (Evaluee(base_url="http://here/v1"), "--base-url needs --model NAME"),
        (Evaluee("dir", "http://here/v1", "small"), "no --checkpoint"),
        (Evaluee(model="small"), "give --base-url, too"),
        (Evaluee("/nowhere"), "/nowhere holds no model"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(config, evaluee, words):
    with pytest.raises(ConfigError, match=words):
        evaluate(config, evaluee, rows=1)


@pytest.mark.parametrize(("samples", "name"), [(3, "--samples is 3"), (0, r"evaluation\.samples is 2")])
def test_copies_of_one_response_are_refused_as_in_a_run(config, asked, samples, name):
    greedy = config.evaluation.sampling.model_copy(update={"temperature": 0.0})
    evaluation = config.evaluation.model_copy(update={"sampling": greedy})
    config = config.model_copy(update={"evaluation": evaluation})
    evaluee = Evaluee(base_url="http://here/v1", model="small")
    with pytest.raises(ConfigError, match=rf"^{name}, but at temperature 0 all .* are the same; give 1"):
        evaluate(config, evaluee, rows=1, samples=samples)
    assert not asked
    assert evaluate(config, evaluee, rows=1, samples=1)["samples"] == 1


def test_an_engine_in_an_environment_of_its_own_is_to_be_served(config):
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"engine": "vllm"})})
    with pytest.raises(ConfigError, match=r"rollout.engine: vllm.*give --base-url"):
        evaluate(config, Evaluee("/nowhere"), rows=1)


def test_without_held_out_rows_their_number_has_to_be_said(config):
    with pytest.raises(ConfigError, match="say how many with --rows"):
        evaluate(config, Evaluee(base_url="http://here/v1", model="small"))


def test_what_the_process_refuses_is_told(config, monkeypatch):
    monkeypatch.setattr(module, "ask", lambda *_, **__: {"problem": "the agent cannot be imported"})
    with pytest.raises(ConfigError, match="the agent cannot be imported"):
        evaluate(config, Evaluee(base_url="http://here/v1", model="small"), rows=1)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_answered(config, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "ask", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(ConfigError, match=r"-o .*none/t\.jsonl cannot be written: No such file.* Expected"):
        evaluate(
            config,
            Evaluee(base_url="http://h/v1", model="m"),
            rows=1,
            transcripts=str(tmp_path / "none" / "t.jsonl"),
        )


@pytest.fixture
def adapter(tmp_path):
    """That of the newest checkpoint, over a model that the run's factory made."""
    step, model = (tmp_path / "runs" / "one" / name for name in ("checkpoints/step_2", "model"))
    model.mkdir()
    (model / "config.json").write_text("{}")
    told = {"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj"]}
    (step / "adapter_config.json").write_text(json.dumps(told))
    (step / ".complete").write_text("")
    return step


@pytest.mark.parametrize("given", [False, True])
def test_an_adapter_is_put_over_the_model_of_the_run_as_it_was_trained(config, asked, adapter, given):
    evaluate(config, Evaluee(str(adapter) if given else ""), rows=1)
    assert asked[-1]["directory"] == str(adapter.parents[1] / "model")
    assert asked[-1]["adapter"] == str(adapter)
    lora = json.loads(asked[-1]["settings"])["trainer"]["lora"]
    assert (lora["rank"], lora["alpha"], lora["target_modules"]) == (4, 8.0, ["q_proj"])


def test_an_adapter_without_its_model_is_told(config, adapter):
    (adapter.parents[1] / "model" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"step_2 is an adapter, and the model below it is not at "):
        evaluate(config, Evaluee(), rows=1)


def test_a_checkpoint_that_is_there_is_proposed(config, adapter):
    with pytest.raises(ConfigError, match=rf"/none holds no model.*--checkpoint DIR, such as {adapter}, or"):
        evaluate(config, Evaluee("/none"), rows=1)


def test_the_run_that_a_configuration_resumes_is_meant_wherever_it_lies(config, asked, adapter):
    (adapter.parents[1] / "run.db").touch()
    elsewhere = config.run.model_copy(update={"name": "two", "resume": str(adapter.parents[1])})
    config = config.model_copy(update={"run": elsewhere})
    evaluate(config, Evaluee(), rows=1)
    assert asked[-1]["adapter"] == str(adapter)
    assert asked[-1]["directory"] == str(adapter.parents[1] / "model")


def test_a_run_to_resume_that_is_not_there_is_told_and_not_evaluated_as_its_initial_model(
    config, asked, adapter
):
    resumed = config.run.model_copy(update={"resume": str(adapter.parents[2] / "typo")})
    config = config.model_copy(update={"run": resumed})
    with pytest.raises(ConfigError, match=r"run\.resume is '.*/typo', and there is no run\.db in it"):
        evaluate(config, Evaluee(), rows=1)
    assert not asked
