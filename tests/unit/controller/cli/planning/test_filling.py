"""How busy instances can be, said before anything runs."""

import pytest
import typer

from controller.cli import main, simulate
from controller.cli.planning.filling import Filling, filling
from controller.config.load import load_config
from controller.config.models import Config
from controller.core.decisions.training import training
from strategies.pacing import next_cap
from strategies.views import AdmissionView
from tests.support.agent_run import AgentRun


def config(*, wait_s=2.0, workers=1, agent=True, **staleness) -> Config:
    return Config.model_validate({
        "rollout": {"instances": 2, "group_size": 4, "max_running": 60, "max_response_tokens": 512},
        "agent": {"function": "simulated", "workers": workers, "concurrency": 400} if agent else {},
        "trainer": {"batch_groups": 16},
        "staleness": {"max_staleness": 2, **staleness},
        "simulation": {"environment": {"wait_s": wait_s, "sigma": 0.5}, "workload": {"median_tokens": 100}},
    })  # fmt: skip


def test_the_sentence_has_the_share_its_numbers_and_what_to_do():
    said = Filling(192, 96.0, 0.62, 120, 3.0).in_words()
    numbers = "in flight 192, of which 96 are not over, waiting 0.62, rows 120"
    assert said.startswith(f"instances can be at most 30% busy: {numbers}; raise ")
    assert "raise" not in Filling(400, 400.0, 0.62, 120, 3.0).in_words()
    assert Filling(400, 400.0, 0.62, 120, 3.0).busy == 1.0


def test_without_agents_nothing_waits():
    assert filling(config(agent=False)) is None


def test_of_instances_that_are_to_attach_nothing_is_said():
    tree = config().model_dump() | {"rollout": {"instances": 0}}
    assert filling(Config.model_validate(tree)) is None


def test_longer_waits_leave_rows_empty_and_a_higher_bound_fills_them():
    shares = [filling(config(wait_s=wait_s)) for wait_s in (0.0, 1.0, 4.0, 16.0)]
    assert [one.in_flight for one in shares] == [192] * 4
    assert [one.waiting for one in shares] == sorted(one.waiting for one in shares)
    assert shares[0].waiting == pytest.approx(0.0, abs=1e-6)
    assert shares[0].busy > 3 * shares[3].busy
    assert filling(config(wait_s=16.0, max_staleness=5)).busy > 1.5 * shares[3].busy


def test_episodes_that_are_over_before_the_longest_of_their_batch_hold_no_row():
    even = config().model_dump()
    even["simulation"]["environment"] |= {"turns_sigma": 0.0, "sigma": 0.0}
    even["simulation"]["workload"]["sigma"] = 0.0
    alike, spread = filling(Config.model_validate(even)), filling(config())
    assert alike.in_flight == spread.in_flight == 192
    assert alike.alive > 150 > 100 > spread.alive
    assert filling(config()) == spread


def test_no_more_are_in_flight_than_agent_workers_take():
    sections = config().model_dump()
    sections["agent"]["concurrency"] = 50
    assert filling(Config.model_validate(sections)).in_flight == 50
    assert filling(config(workers=0)).in_flight == 192


def test_a_cap_that_starves_the_trainer_grows_faster_where_episodes_wait():
    view = AdmissionView(4, 10, 0, 0, 0, 0, 0, cap=20.0)
    steps = [
        next_cap(view, starved=0.5, late=0.0, elasticity=1.0, waiting=waiting) - 20
        for waiting in (0.0, 0.6, 1.0)
    ]
    assert steps == pytest.approx([2.0, 5.0, 10.0])
    assert next_cap(view, starved=0.0, late=0.5, elasticity=1.0, waiting=0.6) == pytest.approx(19.7)


def test_the_core_measures_the_share_that_waits():
    run = AgentRun()
    measure = next(part for part in vars(run.core).values() if isinstance(part, training.Training))._waiting
    assert measure() == 0.0
    run.ask_all()
    assert measure() == 0.0
    run.sample(0, 0)
    assert measure() == 0.25
    run.sample(1, 1)
    assert measure() == 0.5


@pytest.mark.parametrize("command", ["check", "simulate"])
def test_it_is_said_before_anything_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(simulate, "compare", lambda *_, **__: [])
    monkeypatch.setattr(simulate, "print_table", lambda *_, **__: None)
    monkeypatch.setattr(main, "find_problems", lambda *_, **__: [])
    file = tmp_path / "run.yaml"
    file.write_text("agent: {function: simulated, concurrency: 100}\nrollout: {group_size: 4}\n")
    run = main.check if command == "check" else simulate.simulate
    with pytest.raises(typer.Exit):
        run(str(file))
    assert filling(load_config(file)).in_words() in capsys.readouterr().out
