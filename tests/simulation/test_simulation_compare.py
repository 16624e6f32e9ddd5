"""Comparisons of strategies: configurations of cells, the window, the report, the command."""

import json
from dataclasses import replace

import pytest

from controller.cli.main import main
from controller.cli.simulate import MOST_WARNINGS, new_warnings
from controller.config.load import load_config
from controller.config.models import Config
from controller.simulation.bounds import throughput_bound
from controller.simulation.compare import (
    STRATEGIES,
    Cell,
    Row,
    cell_config,
    compare,
    refusal,
    strategies_named,
    upper_bound_of,
)
from controller.simulation.records import Load, Totals, TrainStart, whole_cycles, window
from controller.simulation.report import COLUMNS, cells_of, write_plots, write_results
from protocol.errors import ConfigError
from strategies.presets import FIXED_BOUND

SMALL = """
run: {steps: 16}
rollout: {instances: 3, group_size: 4, max_response_tokens: 400, max_running: 16}
trainer: {batch_groups: 4}
staleness: {max_staleness: 1}
simulation: {pull_s: 0.2}
logging: {console: plain}
"""


def start(at, *, ages, busy=0.0):
    totals = Totals(0, 0, 0, 0, int(at), int(at) * 10, 0, 0, 0, busy, busy / 10)
    return TrainStart(at, 2, (1,), sum(ages.values()), 100 * sum(ages.values()), ages, totals)


def test_a_window_goes_from_train_start_to_train_start():
    starts = [start(0, ages={0: 5}), start(10, ages={0: 4, 2: 4}), start(30, ages={1: 8}, busy=30)]
    assert window(starts, max_staleness=1, skip=2) is None
    figures = window(starts, max_staleness=1, skip=0)
    assert figures is not None
    assert (figures.steps, figures.seconds) == (2, 30)
    assert figures.trajectories_per_s == pytest.approx(13 / 30)
    assert figures.tokens_per_s == pytest.approx(1300 / 30)
    assert (figures.violations, figures.staleness_max) == (4, 2)
    assert figures.rollout_idle == pytest.approx(0.5)
    assert figures.trainer_idle == pytest.approx(0.9)
    assert figures.mean_running == pytest.approx(10)


def test_what_was_wasted_is_a_share_of_all_trained_tokens_however_long_the_seeds_took():
    starts = [start(0, ages={0: 8}), start(10, ages={0: 8})]
    quick = window(starts, max_staleness=1, skip=0)
    assert quick is not None
    slow = replace(quick, seconds=30.0, tokens_per_s=quick.tokens_per_s / 3)
    cells = [
        Cell("greedy", 1, seed, replace(one, wasted_tokens=400, reprefilled_tokens=80), "", 0, Load())
        for seed, one in enumerate((quick, slow))
    ]
    row = cells_of(Row("greedy", 1, tuple(cells), None, 1.0, None))
    assert row[-2:] == ["50.0%", "10.0%"]  # of 800 tokens each


@pytest.mark.parametrize(("cycle", "count", "skip"), [(2, 12, 5), (3, 12, 5), (3, 13, 6), (1, 12, 4)])
def test_steps_in_bursts_are_measured_over_whole_cycles(cycle, count, skip):
    at = [100.0 * (number // cycle) + number % cycle for number in range(count)]
    starts = [start(each, ages={0: 1}) for each in at]
    assert whole_cycles(starts, skip=4, most=4) == skip
    figures = window(starts, max_staleness=3, skip=skip)
    assert figures is not None
    assert figures.trajectories_per_s == pytest.approx(cycle / 100)


def test_with_a_sampler_whole_windows_are_measured_whatever_the_bursts():
    starts = [start(100.0 * (number // 2) + number % 2, ages={0: 1}) for number in range(25)]
    assert whole_cycles(starts, skip=5, most=2) == 6
    assert whole_cycles(starts, skip=5, most=2, cycle=8) == 8
    assert whole_cycles(starts[:10], skip=5, most=2, cycle=8) == 5  # shorter than a window


def sampled(sampler, prompts):
    return Config.model_validate(
        {"run": {"steps": 13}, "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 400},
         "trainer": {"batch_groups": 4, "minibatches": 1},
         "staleness": {"max_staleness": 1, "sampler": sampler, "sampler_batches": 4},
         "simulation": {"workload": {"prompts": prompts, "group_correlation": 0.9, "sigma": 1.3}}}
    )  # fmt: skip


def test_the_bound_is_that_of_the_batches_that_the_sampler_makes():
    mixed = throughput_bound(sampled("in_order", 32))
    assert upper_bound_of(sampled("in_order", 32)) == mixed
    assert upper_bound_of(sampled("similar_length", 0)) == mixed, (
        "nothing is known of prompts without identity"
    )
    for name in ("similar_length", "similar_length_shuffled"):
        assert upper_bound_of(sampled(name, 32)) > 1.1 * mixed


def test_batches_of_a_sampler_of_somebody_else_have_no_bound(tmp_path):
    config = sampled("strategies.batches.samplers:in_order", 32)
    (row,) = compare(config, strategies=["staleflow"], bounds=[1], seeds=[1])
    assert row.failures == []
    assert row.upper_bound is row.share_of_bound is None
    assert cells_of(row)[COLUMNS.index("of bound")] == "-"
    write_plots([row], tmp_path)
    assert (tmp_path / "throughput.png").stat().st_size > 0
    write_results([row], tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())[0]["share_of_bound"] is None


def test_a_run_of_few_steps_is_measured_as_it_is():
    starts = [start(each, ages={0: 1}) for each in (0, 10, 30)]
    assert whole_cycles(starts, skip=2, most=3) == 2
    assert whole_cycles(starts, skip=0, most=3) == 0


def test_another_strategy_brings_its_own_rules_and_the_own_one_keeps_what_was_written():
    config = Config.model_validate({"staleness": {"routing": "round_robin", "mu": 0.7}})
    assert cell_config(config, "staleflow", 3).staleness.routing == "round_robin"
    greedy = cell_config(config, "greedy", 3).staleness
    assert (greedy.routing, greedy.mu, greedy.max_staleness) == ("least_requests", 0.7, 3)


def test_another_strategy_has_neither_the_objective_nor_the_streaming_that_this_turned_on(tmp_path):
    file = tmp_path / "fresh.yaml"
    file.write_text(SMALL.replace("max_staleness: 1", "max_staleness: 1, objective: fresh"))
    config = load_config(str(file), ["trainer.minibatches=1"])
    own = cell_config(config, "staleflow", 2)
    assert (own.staleness.objective, own.trainer.streaming) == ("fresh", True)
    for name in STRATEGIES:
        if name != "staleflow":
            other = cell_config(config, name, FIXED_BOUND.get(name, 2))
            assert (other.staleness.objective, other.trainer.streaming) == ("throughput", False)
            assert refusal(config, other) == ""
    written = load_config(str(file), ["trainer.minibatches=1", "trainer.streaming=true"])
    assert cell_config(written, "greedy", 1).trainer.streaming


def test_an_unknown_strategy_is_refused_with_the_known_ones():
    assert strategies_named("all", "sync") == list(STRATEGIES)
    assert strategies_named("", "sync") == ["sync"]
    with pytest.raises(ConfigError, match=r"names grredy; expected some of .*greedy"):
        strategies_named("sync,grredy", "sync")


def test_a_cell_that_cannot_run_keeps_its_place_with_the_reason():
    config = Config.model_validate(
        {"run": {"steps": 3}, "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 50},
         "trainer": {"batch_groups": 2}, "controller": {"respawns": 0},
         "simulation": {"faults": {"rollout_kills": 100.0, "hang_share": 0.0}}}
    )  # fmt: skip
    (row,) = compare(config, strategies=["staleflow"], bounds=[1], seeds=[1])
    assert "No rollout worker is left" in row.failures[0]
    assert cells_of(row)[:3] == ["staleflow", "1", "failed"]


def test_a_cell_whose_strategy_fails_keeps_its_place_and_the_others_have_figures(tmp_path, capsys):
    rule, config = tmp_path / "mine.py", tmp_path / "small.yaml"
    rule.write_text("def route(work, instances, settings):\n    return instances[9].id\n")
    config.write_text(SMALL)
    words = ["simulate", str(config), f"staleness.routing={rule}:route", "--compare", "staleflow,greedy"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert f"staleflow at bound 1 failed: staleness.routing: route ({rule}, line 2) raised IndexError" in said
    assert "goes on with the same command" not in said, "no run has ended"
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["strategy"] for row in rows if row["runs"][0]["figures"]] == ["greedy"]


def test_a_cell_that_a_real_run_would_be_refused_as_keeps_its_place_with_the_reason(tmp_path, capsys):
    pytest.importorskip("scipy", reason="bounds need scipy")
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["simulate", str(file), "--compare", "areal,staleflow", "trainer.streaming=true"]) == 1
    said = capsys.readouterr().out
    assert [line.split()[:3] for line in said.splitlines() if line.startswith("areal  ")] == [
        ["areal", "1", "failed"]
    ]
    assert "areal at bound 1 failed: a real run is refused: trainer.streaming: is on" in said
    assert "staleflow at bound 1 failed" not in said


def test_what_the_given_configuration_breaks_already_is_no_reason():
    config = Config.model_validate({"rollout": {"group_size": 1}, "trainer": {"streaming": True}})
    assert refusal(config, config) == ""
    assert refusal(config, cell_config(config, "greedy", 1)) == ""
    assert "staleness.ledger" in refusal(config, cell_config(config, "areal", 1))


def test_the_command_prints_a_table_and_writes_results_and_plots(tmp_path, capsys):
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(SMALL)
    words = ["simulate", str(file), "--compare", "staleflow,sync", "--bounds", "1,2", "--seeds", "1,2"]
    assert main([*words, "-o", str(out)]) == 0
    cluster, table = capsys.readouterr().out.split("\n\n")[:2]
    assert cluster.startswith("Simulated cluster, not this machine")
    lines = table.splitlines()
    assert lines[0].split()[:3] == list(COLUMNS[:3])
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["sync", "0"],
        ["staleflow", "1"],
        ["staleflow", "2"],
    ]
    rows = json.loads((out / "results.json").read_text())
    assert [len(row["runs"]) for row in rows] == [2, 2, 2]
    assert rows[0]["ratio_to_sync"] == 1.0
    assert all(row["share_of_bound"] > 0 for row in rows)
    assert {path.name for path in out.iterdir()} == {
        "results.json", "throughput.svg", "throughput.png", "load.svg", "load.png"
    }  # fmt: skip


def test_numbers_that_are_none_are_refused(tmp_path, capsys):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["simulate", str(file), "--bounds", "one"]) == 2
    assert "--bounds is 'one'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "1,1"], "--seeds is '1,1', with a number more than once"),
        (["--bounds", "2,1,2"], "--bounds is '2,1,2', with a number more than once"),
        (["--compare", "greedy,sync,greedy"], "--compare names greedy more than once"),
        (["--seeds", ","], "--seeds is ','; expected whole numbers"),
        (["--bounds", "65"], "--bounds is '65'; expected whole numbers like 1,2,3, at most 64"),
        (["--seed", str(10**50)], "'--seed'"),
        (["--seed", "7", "--seeds", "1,2"], "--seed and --seeds say the same"),
    ],
)
def test_numbers_and_names_given_twice_or_out_of_range_are_refused(tmp_path, capsys, words, said):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(["simulate", str(file), *words]) == 2
    assert said in capsys.readouterr().err


def test_what_a_run_would_warn_of_is_told_once_however_many_are_simulated(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(SMALL.replace("max_staleness: 1", "max_staleness: 1, sampler: similar_length"))
    pytest.importorskip("scipy", reason="bounds need scipy")
    assert main(["simulate", str(path), "--bounds", "1,2", "--seeds", "1,2"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(told) == 1
    assert "The prompts have no identity" in told[0]


def test_of_many_warnings_the_first_are_told_and_that_there_are_more():
    told = dict[str, None]()
    assert new_warnings(told, ["a", "b", "a"]) == ["a", "b"]
    many = [f"worker {n} was lost." for n in range(2 * MOST_WARNINGS)]
    found = new_warnings(told, many)
    assert found[:-1] == many[: MOST_WARNINGS - 2]
    assert "more warnings" in found[-1]
    assert new_warnings(told, ["c"]) == []
