"""Metrics of runs for Prometheus: text format, base units, bounded labels.

Invariants: pure; a name means the same for every run, and no two runs have the same label; workers are
counted by role and never named, so that the number of series does not grow with the fleet; a run that cannot
be read is one that says so.
Source: the exposition format of prometheus.io, version 0.0.4.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Shown = tuple[str, str, Mapping[str, Any] | None]
"""Label of a run; live, over or gone; what its page Now shows, None if it cannot be read."""


MB = 1 << 20
PER_DEVICE = {
    "rollout": "throughput/tokens_per_s_per_device",
    "trainer": "throughput/trained_tokens_per_s_per_device",
}
LAGS = {"p50_s": "0.5", "p99_s": "0.99", "max_s": "1"}
EPISODES = (
    ("episode_sampled_tokens", "episode/sampled_tokens/mean", "Mean tokens of the policy in an episode."),
    ("episode_environment_seconds", "environment/wait_s", "Mean time of an episode's environment."),
    ("episode_environment_ratio", "environment/share", "Share of environments in the time of episodes."),
    ("episode_forks_edited", "agent/forks/edited", "Forks of an episode by edited history."),
    ("episode_forks_template", "agent/forks/template", "Forks of an episode by the chat template."),
    ("episode_forks_compacted", "agent/forks/compacted", "Forks of an episode by replaced turns."),
    ("episode_forks_branched", "agent/forks/branched", "Forks of an episode that changed nothing said."),
    ("kv_reused_ratio", "kv/reused", "Share of prompt tokens that engines had kept."),
    ("episodes_failed", "episodes/failed", "Episodes whose environment, function or process failed."),
    ("episodes_retried", "episodes/retried", "Episodes that began anew after a failure."),
    ("episodes_diverged", "episodes/diverged", "Episodes that asked something else when run again."),
    ("episodes_replayed", "episodes/replayed", "Episodes that came to where they were when run again."),
)
"""Name, key of a line, and what it is."""


class Series(NamedTuple):
    """One line of a metric."""

    labels: dict[str, str]
    value: float


def labels_of(runs: Sequence[Path]) -> list[str]:
    """What tells runs apart: the name of each folder, behind those above it where two have the same name.

    A folder that is there twice gets a number. `runs`: their whole paths.
    """
    labels = {run: _label(run, 1) for run in runs}
    for depth in range(2, max((len(run.parts) for run in runs), default=0) + 1):
        times = Counter(labels.values())
        labels = {run: label if times[label] == 1 else _label(run, depth) for run, label in labels.items()}
    found, taken = list[str](), set(labels.values())
    for place, run in enumerate(runs):
        label, number = labels[run], 1
        while run in runs[:place] and label in taken:
            number += 1
            label = f"{labels[run]} #{number}"
        taken.add(label)
        found.append(label)
    return found


def _label(run: Path, depth: int) -> str:
    """The last names of a path; bytes of it that are no UTF-8 become escapes."""
    return str(Path(*run.parts[-depth:])).encode(errors="backslashreplace").decode()


def exposition(runs: Iterable[Shown]) -> str:
    """The text of the whole page."""
    found: dict[str, tuple[str, str, list[Series]]] = {}
    for name, state, now in runs:
        for metric, kind, help_text, series in _of_run(state, now):
            entry = found.setdefault(metric, (kind, help_text, []))
            entry[2].extend(Series({"run": name, **one.labels}, one.value) for one in series)
    lines: list[str] = []
    for metric, (kind, help_text, series) in found.items():
        if kind:
            lines += [f"# HELP staleflow_{metric} {help_text}", f"# TYPE staleflow_{metric} {kind}"]
        lines += [f"staleflow_{metric}{_labels(one.labels)} {one.value:.17g}" for one in series]
    return "\n".join(lines) + "\n"


def _of_run(state: str, now: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str, list[Series]]]:
    yield "up", "gauge", "1 while the controller of the run is at work.", [Series({}, state == "live")]
    yield (
        "over",
        "gauge",
        "1 once the run has ended, and says how; 0 if its controller is gone.",
        [Series({}, state == "over")],
    )
    readable = [Series({}, now is not None)]
    yield "readable", "gauge", "1 if the run's history can be read; else nothing but this is known.", readable
    if now is not None:
        yield from _of_now(now if state == "live" else {**now, "workers": ()})  # the last ones have left


def _of_now(now: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Series]]]:
    yield "steps_total", "counter", "Train steps finished.", [Series({}, now["steps"])]
    yield "policy_version", "gauge", "Newest published version.", [Series({}, now["published_version"])]
    yield "run_seconds", "gauge", "Time of the run.", [Series({}, now["now_s"])]
    yield "paused", "gauge", "1 while an operator has paused the run.", [Series({}, bool(now["paused"]))]
    fates = {fate: count for fate, count in now["tokens"].items() if fate != "generated"}
    yield (
        "tokens_total", "gauge", "Generated tokens by what became of them.",
        [Series({"fate": fate}, count) for fate, count in fates.items()],
    )  # fmt: skip
    yield (
        "groups", "gauge", "Groups in the system by state.",
        [Series({"state": each}, count) for each, count in now["groups"].items()],
    )  # fmt: skip
    yield "queued_responses", "gauge", "Responses that wait for an instance.", [Series({}, now["queued"])]
    yield (
        "spent_seconds_total", "counter", "Seconds of the run by what the next train step waited for.",
        [Series({"cause": cause}, seconds) for cause, seconds in now["spent_s"].items()],
    )  # fmt: skip
    workers = Counter((one["role"], "ready" if one["ready"] else "starting") for one in now["workers"])
    yield (
        "workers", "gauge", "Attached workers by role and state.",
        [Series({"role": role, "state": each}, count) for (role, each), count in sorted(workers.items())],
    )  # fmt: skip
    yield from _of_controller(now["controller"])
    yield (
        "alarm", "gauge", "1 for each alarm that holds.",
        [Series({"name": name}, 1) for name in dict.fromkeys(one["name"] for one in now["alarms"])],
    )  # fmt: skip
    yield from _of_machines(now["workers"], now["last_step"])
    yield from _of_episodes(now["last_step"])
    yield "staleness_versions", "histogram", "Trained trajectories by staleness.", []
    yield from _staleness(now["ages"])
    yield (
        "staleness_violations_total", "counter", "Trained trajectories older than the bound.",
        [Series({}, now["violations"])],
    )  # fmt: skip


def _of_controller(told: Mapping[str, float]) -> Iterator[tuple[str, str, str, list[Series]]]:
    """How late its event loop comes, and the room on its disk; nothing of a run that does not go on."""
    lags = {quantile: told.get(f"loop_lag_{key}") for key, quantile in LAGS.items()}
    yield (
        "loop_lag_seconds", "gauge", "How late the controller's event loop comes, in its last minute.",
        [Series({"quantile": quantile}, lag) for quantile, lag in lags.items() if lag is not None],
    )  # fmt: skip
    free = told.get("disk_free_mb")
    series = [] if free is None else [Series({}, MB * free)]
    yield "disk_free_bytes", "gauge", "Room on the disk of the run directory.", series


def _of_machines(
    workers: Iterable[Mapping[str, Any]], line: Mapping[str, float]
) -> Iterator[tuple[str, str, str, list[Series]]]:
    """Memory of the largest worker of each role, and speed by the newest line of metrics.jsonl."""
    for name, key, what in (
        ("worker_resident_bytes", "resident_mb", "Largest resident memory of a worker with all below it."),
        ("worker_device_bytes", "device_mb", "Most memory in use on the device of a worker."),
    ):
        most: dict[str, int] = {}
        for worker in workers:
            most[worker["role"]] = max(most.get(worker["role"], 0), worker[key])
        series = [Series({"role": role}, MB * mb) for role, mb in sorted(most.items()) if mb]
        yield name, "gauge", what, series
    speeds = {role: line.get(key) for role, key in PER_DEVICE.items()}
    yield (
        "device_tokens_per_second", "gauge", "Tokens that one device generates or trains on in a second.",
        [Series({"role": role}, speed) for role, speed in speeds.items() if speed is not None],
    )  # fmt: skip
    for name, key, what in (
        (
            "trainer_device_flops",
            "compute/flops_per_s_per_device",
            "FLOPs of one of its devices in 1 s.",
        ),
        ("trainer_mfu_ratio", "compute/mfu", "Share of its device's peak; none where that is not known."),
        ("flops_per_token", "compute/flops_per_token", "FLOPs of a train step by the tokens of its batch."),
    ):
        yield name, "gauge", what, [Series({}, line[key])] if key in line else []
    phases = {key.removeprefix("phase/"): share for key, share in line.items() if key.startswith("phase/")}
    yield (
        "step_phase_ratio", "gauge", "Shares of the newest step's time by what it waited for.",
        [Series({"cause": cause}, share) for cause, share in phases.items()],
    )  # fmt: skip


def _of_episodes(line: Mapping[str, float]) -> Iterator[tuple[str, str, str, list[Series]]]:
    """What the newest line says of an agent's episodes; nothing of runs without one."""
    for name, key, what in EPISODES:
        if key in line:
            yield name, "gauge", what, [Series({}, line[key])]
    endings = {key.removeprefix("ending/"): n for key, n in line.items() if key.startswith("ending/")}
    if endings:
        counted = [Series({"ending": ending}, count) for ending, count in endings.items()]
        yield "episode_endings", "gauge", "Episodes that ended since the step before, by why.", counted
    overhead = {share: line.get(f"turn/overhead_ms/p{share}") for share in (50, 99)}
    told = [Series({"quantile": f"{n / 100:g}"}, ms / 1000) for n, ms in overhead.items() if ms is not None]
    if told:
        yield "turn_overhead_seconds", "gauge", "What a turn took beside queue and engine.", told


def _staleness(ages: Mapping[str, int]) -> Iterator[tuple[str, str, str, list[Series]]]:
    """A histogram has three names, which follow its TYPE line; they have none of their own."""
    counts = {int(age): count for age, count in ages.items()}
    so_far, buckets = 0, list[Series]()
    for age in range(max(counts, default=0) + 1):
        so_far += counts.get(age, 0)
        buckets.append(Series({"le": str(age)}, so_far))
    buckets.append(Series({"le": "+Inf"}, so_far))
    total = sum(age * count for age, count in counts.items())
    yield "staleness_versions_bucket", "", "", buckets
    yield "staleness_versions_sum", "", "", [Series({}, total)]
    yield "staleness_versions_count", "", "", [Series({}, so_far)]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
