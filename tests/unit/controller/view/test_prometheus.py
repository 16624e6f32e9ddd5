"""Figures in Prometheus' text format."""

import re
from pathlib import Path

from controller.view.prometheus import exposition, labels_of

NOW = {
    "now_s": 12.5, "steps": 3, "published_version": 3, "paused": "", "queued": 2, "violations": 0,
    "tokens": {"generated": 30, "trained": 20, "in_flight": 10}, "groups": {"generating": 4},
    "spent_s": {"training": 6.0, "rollout": 1.5}, "ages": {"0": 5, "2": 3},
    "workers": [{"role": "rollout", "ready": True, "resident_mb": 3, "device_mb": 5},
                {"role": "rollout", "ready": True, "resident_mb": 4, "device_mb": 0},
                {"role": "trainer", "ready": False, "resident_mb": 0, "device_mb": 0}],
    "last_step": {"throughput/tokens_per_s_per_device": 12.5, "compute/mfu": 0.5, "phase/training": 0.25,
                  "phase/rollout": 0.75, "environment/share": 0.5, "kv/reused": 0.125,
                  "turn/overhead_ms/p50": 2.0, "turn/overhead_ms/p99": 8.0,
                  "episodes/retried": 3, "ending/stop": 30, "ending/timeout": 1},
    "controller": {"loop_lag_p50_s": 0.0005, "loop_lag_p95_s": 0.125, "loop_lag_p99_s": 0.25,
                   "loop_lag_max_s": 0.5, "loop_lag_window_s": 60.0, "disk_free_mb": 4},
    "alarms": [{"name": "disk", "owner": "controller"}, {"name": "damaged file", "owner": "metrics.jsonl"},
               {"name": "damaged file", "owner": "evaluations.jsonl"}],
}  # fmt: skip
LINE = re.compile(r'[a-z_]+\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\} [0-9.e+-]+|# (HELP|TYPE) [a-z_]+ .+')


def test_every_line_is_of_the_format_and_a_name_is_introduced_once():
    page = exposition([("a", "live", NOW), ('b "quoted"', "over", NOW)])
    lines = page.splitlines()
    assert page.endswith("\n")
    for line in lines:
        assert LINE.fullmatch(line.replace('\\"', "'")), line
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert 'staleflow_up{run="a"} 1' in lines
    assert 'staleflow_up{run="b \\"quoted\\""} 0' in lines


def test_a_run_that_has_ended_is_told_from_one_whose_controller_is_gone_and_has_no_workers():
    for state, values in {"live": (1, 0), "over": (0, 1), "gone": (0, 0)}.items():
        lines = exposition([("a", state, NOW)]).splitlines()
        assert lines[2] == f'staleflow_up{{run="a"}} {values[0]}'
        assert f'staleflow_over{{run="a"}} {values[1]}' in lines
        assert any(line.startswith("staleflow_workers{") for line in lines) == (state == "live")


def test_no_two_runs_have_the_same_label():
    paths = ["/a/x/rb", "/b/x/rb", "/c/rb", "/c/other", "/c/other", "/rb"]
    assert labels_of([Path(path) for path in paths]) == [
        "a/x/rb",
        "b/x/rb",
        "c/rb",
        "other",
        "other #2",
        "/rb",
    ]
    assert labels_of([]) == []
    odd = [Path("/x/run"), Path("/x/run"), Path("/y/run #2"), Path("/x/run")]
    assert len(set(labels_of(odd))) == 4


def test_of_a_run_that_cannot_be_read_it_is_said_that_it_cannot():
    lines = exposition([("a", "live", NOW), ("b", "live", None)]).splitlines()
    of_b = [line for line in lines if 'run="b"' in line]
    assert of_b == ['staleflow_up{run="b"} 1', 'staleflow_over{run="b"} 0', 'staleflow_readable{run="b"} 0']
    assert 'staleflow_readable{run="a"} 1' in lines


def test_a_histogram_counts_up_to_all():
    lines = exposition([("a", "live", NOW)]).splitlines()
    buckets = [
        line.rpartition(" ")[2] for line in lines if line.startswith("staleflow_staleness_versions_bucket")
    ]
    assert buckets == ["5", "5", "8", "8"]
    assert 'staleflow_staleness_versions_sum{run="a"} 6' in lines
    assert 'staleflow_staleness_versions_count{run="a"} 8' in lines


def test_workers_are_counted_and_never_named():
    lines = exposition([("a", "live", NOW)]).splitlines()
    assert 'staleflow_workers{run="a",role="rollout",state="ready"} 2' in lines
    assert 'staleflow_workers{run="a",role="trainer",state="starting"} 1' in lines


def test_memory_is_of_the_largest_worker_of_a_role_and_speed_of_the_newest_step():
    lines = exposition([("a", "live", NOW)]).splitlines()
    assert [line for line in lines if line.startswith(("staleflow_worker_", "staleflow_device_"))] == [
        f'staleflow_worker_resident_bytes{{run="a",role="rollout"}} {4 << 20}',
        f'staleflow_worker_device_bytes{{run="a",role="rollout"}} {5 << 20}',
        'staleflow_device_tokens_per_second{run="a",role="rollout"} 12.5',
    ]
    assert 'staleflow_trainer_mfu_ratio{run="a"} 0.5' in lines
    assert 'staleflow_step_phase_ratio{run="a",cause="rollout"} 0.75' in lines


def test_figures_of_episodes_are_those_of_the_newest_step():
    lines = exposition([("a", "live", NOW)]).splitlines()
    for line in (
        'staleflow_episode_environment_ratio{run="a"} 0.5',
        'staleflow_kv_reused_ratio{run="a"} 0.125',
        'staleflow_turn_overhead_seconds{run="a",quantile="0.5"} 0.002',
        'staleflow_turn_overhead_seconds{run="a",quantile="0.99"} 0.0080000000000000002',
        'staleflow_episodes_retried{run="a"} 3',
        'staleflow_episode_endings{run="a",ending="stop"} 30',
        'staleflow_episode_endings{run="a",ending="timeout"} 1',
    ):
        assert line in lines
    assert not [line for line in lines if "sampled_tokens" in line]
    assert not [line for line in lines if line.startswith("staleflow_flops_per_token")]


def test_the_controller_says_how_late_its_loop_comes_and_how_much_room_its_disk_has():
    lines = exposition(
        [("a", "live", NOW), ("b", "over", NOW | {"controller": {}, "alarms": []})]
    ).splitlines()
    assert [line for line in lines if line.startswith(("staleflow_loop", "staleflow_disk"))] == [
        'staleflow_loop_lag_seconds{run="a",quantile="0.5"} 0.00050000000000000001',
        'staleflow_loop_lag_seconds{run="a",quantile="0.99"} 0.25',
        'staleflow_loop_lag_seconds{run="a",quantile="1"} 0.5',
        f'staleflow_disk_free_bytes{{run="a"}} {4 << 20}',
    ]


def test_each_alarm_that_holds_is_one_series():
    lines = exposition([("a", "live", NOW)]).splitlines()
    assert [line for line in lines if line.startswith("staleflow_alarm")] == [
        'staleflow_alarm{run="a",name="disk"} 1',
        'staleflow_alarm{run="a",name="damaged file"} 1',
    ]
