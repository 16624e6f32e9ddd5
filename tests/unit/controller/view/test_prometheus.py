"""Figures in Prometheus' text format."""

import re

from controller.view.prometheus import exposition

NOW = {
    "now_s": 12.5, "steps": 3, "published_version": 3, "paused": "", "queued": 2, "violations": 0,
    "tokens": {"generated": 30, "trained": 20, "in_flight": 10}, "groups": {"generating": 4},
    "spent_s": {"training": 6.0, "rollout": 1.5}, "ages": {"0": 5, "2": 3},
    "workers": [{"role": "rollout", "ready": True}, {"role": "rollout", "ready": True},
                {"role": "trainer", "ready": False}],
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
