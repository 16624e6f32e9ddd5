"""What a run directory says to the controller that goes on with it, and when it may not."""

import json
import re
import sqlite3
import threading
from pathlib import Path

import pytest

from controller.config.load import change_config, valid_keys
from controller.config.models import Config
from controller.data.prompts import PromptSource
from controller.data.sources import advance
from controller.durability.store import Store
from controller.host.resume import MAY_CHANGE, find_past, finished_steps, read_past
from controller.host.resumed_run import ResumedRun
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError, RunError
from tests.support.answered_run import AnsweredRun

ROOT = Path(__file__).resolve().parents[4]


def half(tmp_path: Path) -> Config:
    """A run that was cut off after its first step."""
    run = AnsweredRun(tmp_path / "run.db", steps=4)
    run.to_the_end(max_events=30, flush=False)
    assert 1 <= run.core.state.steps < 4
    return run.config


def test_the_past_has_the_core_the_time_and_the_lines(tmp_path):
    config = half(tmp_path)
    past = read_past(tmp_path, config)
    assert past is not None
    assert not past.is_over
    assert past.now == pytest.approx(0.30)
    assert [json.loads(line)["step"] for line in past.metrics()] == list(range(1, past.core.state.steps + 1))


async def test_the_past_is_derived_in_a_thread_that_delays_no_exit(tmp_path, monkeypatch):
    """Ctrl-C ends the command at once, however long the history is."""
    config = change_config(half(tmp_path), [f"run.dir={tmp_path.parent}", f"run.name={tmp_path.name}"])
    seen: list[bool] = []

    def read(run: Path, config: Config) -> ResumedRun | None:
        seen.append(threading.current_thread().daemon)
        return read_past(run, config)

    monkeypatch.setattr("controller.host.resume.read_past", read)
    directory = RunDirectory(config)
    try:
        assert await find_past(directory, config, on_warning=pytest.fail) is not None
    finally:
        directory.close()
    assert seen == [True]


def test_a_run_is_over_with_its_steps_and_not_when_more_are_asked_for(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=2)
    run.to_the_end()
    past = read_past(tmp_path, run.config)
    assert past is not None
    assert past.is_over
    more = read_past(tmp_path, change_config(run.config, ["run.steps=3"]))
    assert more is not None
    assert not more.is_over


def test_a_finished_run_is_known_by_its_summary_whatever_made_it(tmp_path):
    config = Config.model_validate({"run": {"steps": 3}})
    assert finished_steps(tmp_path, config) is None
    for is_success, steps, found in ((True, 3, 3), (True, 2, None), (False, 3, None)):
        (tmp_path / "summary.json").write_text(json.dumps({"is_success": is_success, "steps": steps}))
        assert finished_steps(tmp_path, config) == found
    (tmp_path / "summary.json").write_text("[]")
    assert finished_steps(tmp_path, config) is None


def test_a_file_without_events_is_no_run(tmp_path):
    Store(tmp_path / "run.db").close()
    assert read_past(tmp_path, Config()) is None
    (tmp_path / "run.db").unlink()
    (tmp_path / "run.db").touch()
    assert read_past(tmp_path, Config()) is None


def test_harmless_changes_are_taken_over_and_others_refused_by_name(tmp_path):
    config = half(tmp_path)
    harmless = ["run.steps=9", "rollout.instances=5", "controller.lease_s=30.0", "trainer.ranks=2"]
    assert read_past(tmp_path, change_config(config, harmless)) is not None
    with pytest.raises(ConfigError) as caught:
        read_past(tmp_path, change_config(config, ["staleness.max_staleness=3", "trainer.batch_groups=4"]))
    assert "staleness.max_staleness: 1 there, 3 now" in str(caught.value)
    assert "trainer.batch_groups: 2 there, 4 now" in str(caught.value)


def test_of_changed_sources_only_what_differs_is_named(tmp_path):
    data = {"sources": [{"path": "a.jsonl"}, {"path": "b.jsonl", "columns": {"prompt": "x"}}]}
    AnsweredRun(tmp_path / "run.db", data=data).to_the_end(max_events=30, flush=False)
    config = Config.model_validate(
        {"data": {"sources": [{"path": "a.jsonl", "weight": 2.0}, {"path": "b.jsonl", "where": {"n": [1]}}]}}
    )
    with pytest.raises(ConfigError) as caught:
        read_past(tmp_path, config)
    said = [line.strip() for line in str(caught.value).split("\n") if "data.sources" in line]
    assert said == [
        "data.sources.0.weight: 1.0 there, 2.0 now",
        "data.sources.1.columns: {'prompt': 'x'} there, {} now",
        "data.sources.1.where.n: not set there, [1] now",
    ]


@pytest.mark.parametrize(
    "change",
    [
        "cluster.time_limit=2-00:00:00",
        "weights.directory=/scratch",
        "reward.memory_mb=4000",
        "rollout.vllm.gpu_memory_utilization=0.5",
        "rollout.vllm.kv_cache_gb=20.0",
    ],
)
def test_what_only_says_where_and_with_how_much_memory_it_runs_may_change(tmp_path, change):
    config = half(tmp_path)
    past = read_past(tmp_path, change_config(config, [change]))
    assert past is not None
    assert not past.is_over


def test_the_document_lists_all_that_may_change_and_nothing_else():
    text = (ROOT / "docs" / "durability.md").read_text()
    (told,) = re.findall(r"These may change[^:]*:\n(.*?)\n\n", text, re.S)
    assert sorted(re.findall(r"`([a-z_.]+)`", told)) == sorted(MAY_CHANGE)
    assert set(MAY_CHANGE) <= set(valid_keys())


def test_a_core_that_decides_otherwise_than_the_run_did_does_not_take_it_up(tmp_path):
    config = half(tmp_path)
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("UPDATE fingerprints SET digests = zeroblob(length(digests)) WHERE first_seq = 7")
    db.close()
    with pytest.raises(RunError, match="at event 7 "):
        read_past(tmp_path, config)


def rows(count: int, word: str = "a") -> list[dict[str, str]]:
    return [{"prompt": f"{word}{i}"} for i in range(count)]


def test_prompts_are_read_on_from_where_the_run_was():
    known = dict(enumerate(PromptSource(Config(), rows(3000)).read(2000)))
    prompts = PromptSource(Config(), rows(3000))
    advance(prompts, 2000, known)
    assert prompts.read(1) == [b'{"prompt":"a2000"}']


def test_other_or_fewer_prompts_than_before_are_refused():
    known = dict(enumerate(PromptSource(Config(), rows(10)).read(10)))
    with pytest.raises(ConfigError, match=r"Prompt 0 was .*a0.* and is now .*b0.* another release"):
        advance(PromptSource(Config(), rows(10, "b")), 10, known)
    config = Config.model_validate({"data": {"epochs": 1}})
    with pytest.raises(ConfigError, match="has read 10 prompts, and its source ends after 4"):
        advance(PromptSource(config, rows(4)), 10, {})


def test_a_directory_with_a_run_waits_to_be_told_and_another_one_can_be_named(tmp_path):
    settings = Config.model_validate({"run": {"dir": str(tmp_path), "name": "run"}})
    (tmp_path / "run").mkdir()
    Store(tmp_path / "run" / "run.db").close()
    directory = RunDirectory(settings)
    assert directory.has_run
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    directory.go_on(['{"step": 1}', '{"step": 2}'], [], settings.weights.directory)
    directory.append_metrics({"step": 3})
    directory.close()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1}', '{"step": 2}', '{"step": 3}']
    aside = RunDirectory(change_config(settings, ["run.resume=never"]))
    assert aside.previous == tmp_path / "run.1"
    assert not aside.has_run
    aside.close()
    named = RunDirectory(change_config(settings, [f"run.resume={tmp_path / 'run.1'}"]))
    assert (named.path, named.has_run) == (tmp_path / "run.1", True)
    named.close()
    with pytest.raises(ConfigError, match=r"no run\.db in it"):
        RunDirectory(change_config(settings, ["run.resume=nowhere"]))


async def test_a_run_that_kept_nothing_and_was_killed_behind_its_first_evaluation_is_set_aside(tmp_path):
    kept_nothing = Config.model_validate({"run": {"dir": str(tmp_path), "name": "run", "durability": "off"}})
    killed = RunDirectory(kept_nothing)
    killed.append_evaluation({"policy_version": 0, "pass@1": 0.25})
    killed.close()
    told: list[str] = []
    again = RunDirectory(config := change_config(kept_nothing, ["run.durability=process"]))
    assert await find_past(again, config, on_warning=told.append) is None
    again.append_evaluation({"policy_version": 0, "pass@1": 0.5})
    again.close()
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["pass@1"] for line in lines] == [0.5]
    assert again.previous == tmp_path / "run.1"
    assert "held a run without run.db" in told[0]


def test_an_emptied_journal_beside_a_checkpoint_is_refused_with_what_is_there(tmp_path):
    config = half(tmp_path)
    (tmp_path / "run.db").unlink()
    Store(tmp_path / "run.db").close()
    (tmp_path / "checkpoints" / "step_3").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_3" / ".complete").touch()
    with pytest.raises(ConfigError, match=r"the run has begun: /.*/checkpoints/step_3 is there") as raised:
        read_past(tmp_path, config)
    assert "metrics.jsonl" not in str(raised.value)
