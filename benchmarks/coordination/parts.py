"""The parts of the benchmark that compare simulated runs: which runs, and the tables made of their figures.

Invariants: a table shows what was measured, means over the seeds that ran; a cell that was not run is `-`; a
share is of the clairvoyant upper bound for the same workload, bound, cluster and publishing. A run that loses
long responses (their mean is under 93 % of the draw's) is marked and never called the best.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.coordination.cells import WORKLOADS, Cell, Figures, Runner, cell
from tests.support.published_study import AREAL, PUBLISHED

BOUNDS = (1, 2, 3)
PRESETS = ("staleflow", "greedy", "sync", "one_step", "areal", "roll_flash", "verl_async")
WHOLE_LENGTH = 0.93  # of the draw's mean: with less, long responses were lost
STUDY_SEED = 1  # of the published figures


class Table(NamedTuple):
    """What is printed, and written to docs."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""


class Results:
    """Figures of cells, averaged over seeds."""

    def __init__(self, runner: Runner, cells: list[Cell], seeds: Sequence[int] = ()) -> None:
        """`seeds`: those of the runner, unless said."""
        seeds = seeds or range(1, runner.seeds + 1)
        self.figures = runner.measure([replace(one, seed=seed) for one in cells for seed in seeds])
        self.seeds = seeds

    def of(self, one: Cell) -> list[Figures]:
        """The figures of the seeds that ran."""
        found = [self.figures.get(replace(one, seed=seed), {"failure": "not run"}) for seed in self.seeds]
        return [figures for figures in found if "failure" not in figures]

    def mean(self, one: Cell, name: str = "trajectories_per_s") -> float | None:
        """Mean over the seeds that ran, None if none did."""
        values = [figures[name] for figures in self.of(one)]
        return fmean(values) if values else None

    def ratio(self, one: Cell, other: Cell) -> float | None:
        """Throughput of one over the other, over the seeds that both have."""
        pairs = [(self.figures.get(replace(a, seed=s), {}), self.figures.get(replace(b, seed=s), {}))
                 for s in self.seeds for a, b in [(one, other)]]  # fmt: skip
        rates = [(a["trajectories_per_s"], b["trajectories_per_s"]) for a, b in pairs
                 if "trajectories_per_s" in a and "trajectories_per_s" in b]  # fmt: skip
        return fmean(a for a, _ in rates) / fmean(b for _, b in rates) if rates else None

    def best(self, cells: list[Cell]) -> Cell | None:
        """The fastest of those that ran, kept their bound and lost no long responses; None if none did."""
        fair = [one for one in cells if (found := self.of(one)) and all(
                f["violations"] == 0 and f["length_ratio"] >= WHOLE_LENGTH for f in found)]  # fmt: skip
        return max(fair, key=lambda one: self.mean(one) or 0.0, default=None)

    def records(self) -> list[dict[str, Any]]:
        """Every run, for plots and other programs."""
        return [{"shape": one.shape, "workload": one.workload, "bound": one.bound, "seed": one.seed,
                 "publish": one.publish, "rules": dict(one.rules), **figures}
                for one, figures in self.figures.items()]  # fmt: skip


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or `-` if there is none."""
    return "-" if value is None else format(value, form)


def share(results: Results, one: Cell, upper: float | None) -> str:
    """Share of an upper bound, mean staleness, and what is wrong with the run: `0.93 (1.2, 3% late)`."""
    rate, found = results.mean(one), results.of(one)
    if rate is None or not upper:
        return "-"
    trained = fmean(f["trajectories_per_s"] * f["seconds"] for f in found)
    late = fmean(f["violations"] for f in found) / trained
    length = fmean(f["length_ratio"] for f in found)
    return f"{rate / upper:.2f} ({results.mean(one, 'staleness_mean'):.1f}" + (
        f"{f', {late:.0%} late' if late else ''}{f', short {length:.2f}' if length < WHOLE_LENGTH else ''})"
    )


def agreement(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """Ours beside the published figures: synchronous, earliest deadline first, and AReaL's capacity."""
    plan = []
    for workload in WORKLOADS:
        for bound, published in enumerate(PUBLISHED[workload]):
            terms = {"publish": "early", "is_reserved": True} if bound else {}
            one = cell(workload, bound, "greedy", partial_rollout=False, **terms)
            plan.append(("earliest deadline" if bound else "sync", published, one))
        for bound, published in enumerate(AREAL[workload], 1):
            rules = {"partial_rollout": False, "publish": "early", "is_reserved": True}
            plan.append(("areal", published, cell(workload, bound, "areal", **rules)))
    results = Results(runner, [one for _, _, one in plan], seeds=(STUDY_SEED,))
    rows = []
    for name, published, one in plan:
        ours = results.mean(one)
        off = None if ours is None else ours / published - 1
        verdict = "" if off is None or abs(off) <= 0.05 else "misses 5 %"
        rows.append([one.workload, name, str(one.bound), number(published), number(ours),
                     number(off, "+.1%"), verdict])  # fmt: skip
    header = ["workload", "strategy", "bound", "published", "ours", "difference", ""]
    note = (
        "Trajectories/s, single-response groups. `published` is another simulator. `sync` is the ledger at "
        "bound 0. The others run on that simulator's terms: weights are visible when a train step begins, a "
        "transfer stops no instance, KV is reserved for final lengths, and the lengths are its draw, of one "
        "seed."
    )
    return [Table("Agreement with published figures", header, rows, note)], results.records()


def freshness(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """The same speed with fresher data, and more speed with equally fresh data."""
    pairs: list[tuple[str, str, Cell, Cell, float]] = []
    for w in WORKLOADS:
        for flight in ("auto", 2.0):
            ours = cell(w, 3, in_flight_batches=flight) if flight != "auto" else cell(w, 3)
            pairs.append(
                (f"bound 3, in flight {flight}", "greedy, bound 3", ours, cell(w, 3, "greedy"), 0.97)
            )
        ours = cell(w, 5, in_flight_batches=2.0)
        pairs.append(("bound 5, in flight 2.0", "greedy, bound 1", ours, cell(w, 1, "greedy"), 1.6))
    results = Results(runner, list(dict.fromkeys(one for pair in pairs for one in pair[2:4])))
    rows = []
    for ours_said, bare_said, ours, bare, aim in pairs:
        ratio, ages = results.ratio(ours, bare), results.mean(ours, "staleness_mean")
        is_aimed = aim < 1 or ours.workload in ("lognormal", "bimodal", "power_law")
        misses = [f"{ratio:.2f} < {aim}"] if ratio is not None and is_aimed and ratio < aim else []
        misses += [f"staleness {ages:.2f} > 1"] if ages is not None and round(ages, 1) > 1 else []
        rows.append([ours.workload, ours_said, number(results.mean(ours)), number(ages), bare_said,
                     number(results.mean(bare)), number(results.mean(bare, "staleness_mean")),
                     number(ratio), ", ".join(misses)])  # fmt: skip
    columns = ["traj/s", "staleness"]
    header = ["workload", "staleflow", *columns, "against", *columns, "ratio", "misses"]
    return [Table("Freshness: throughput at equal maximum, and at equal mean staleness", header, rows,
                  "Aims: at bound 3, at least 0.97 of the speed at a mean staleness of at most 1.0; on the "
                  "heavy tails, 1.6x the speed at an equal mean of 1.0.")], results.records()  # fmt: skip


def shape(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """The paper's setting: 128 instances, 2,048 responses a step, at most 20,000 tokens; sync is bound 0."""
    how = {"shape": "wide", "steps": 31}
    names, workloads = ("staleflow", "greedy", "one_step", "roll_flash"), ("lognormal", "power_law")
    cells = [cell(w, 0, "greedy", **how) for w in workloads]
    cells += [cell(w, b, name, **how) for name in names for b in BOUNDS for w in workloads]
    results, rows, gains = Results(runner, list(dict.fromkeys(cells))), [], {"sync": [], "strict": []}
    for workload in workloads:
        for bound in BOUNDS:
            ours, sync = cell(workload, bound, **how), cell(workload, 0, "greedy", **how)
            others = [cell(workload, bound, name, **how) for name in ("one_step", "greedy", "roll_flash")]
            best = results.best([one for one in others if one.bound <= bound]) or sync
            for name, one in (("sync", sync), ("strict", best)):
                gains[name] += [ratio] if (ratio := results.ratio(ours, one)) else []
            rival = "sync" if best == sync else str(dict(best.rules)["strategy"])
            row = [number(results.mean(ours)), share(results, ours, results.mean(ours, "upper_bound"))]
            row += [number(results.ratio(ours, sync)), rival, number(results.ratio(ours, best))]
            rows.append([workload, str(bound), *row])
    for name, paper in (("sync", "2.68 / 2.01"), ("strict", "1.42 / 1.17")):
        if found := gains[name]:
            rows.append([f"up to / average over {name}", "", "", "", f"{max(found):.2f} / {fmean(found):.2f}",
                         "the paper's, on GPUs", paper])  # fmt: skip
    header = ["workload", "bound", "traj/s", "share of bound", "x sync", "best strict baseline", "x that"]
    note = "In `sync`, as in the others, trainer and instances share no GPU; a colocated one would be faster."
    return [Table("The paper's shape: gains", header, rows, note)], results.records()


SWITCHES: dict[str, dict[str, Any]] = {
    "routing: least_requests": {"routing": "least_requests"},
    "synchronization: greedy": {"synchronization": "greedy"},
    "migration: none": {"migration": "none"},
    "pace: 0.85": {"pace": 0.85},
    "length_prediction: false": {"length_prediction": False},
    "cost_model: published": {"cost_model": "published"},
    "in_flight_batches: all": {"in_flight_batches": "all"},
    "spare_groups: 32 of 512": {"spare_groups": 32},
    "keep_kv: false": {"keep_kv": False},
}


def ablation(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """Each part of the coordinator switched off, or redundancy on, one at a time."""
    columns = [(w, b) for w in ("lognormal", "power_law", "uniform") for b in (3, 1)]
    extra = {"routing, small groups: group_affine": {"routing": "group_affine"},
             "spare_responses, small groups: 2 of 16": {"spare_responses": 2}}  # fmt: skip
    rules = {"staleflow": {}, **SWITCHES, "small groups": {}, **extra}
    cells = {(name, w, b): cell(w, b, **own, shape="small" if "small" in name else "single")
             for name, own in rules.items() for w, b in columns}  # fmt: skip
    results = Results(runner, list(cells.values()))
    rows = []
    for name in rules:
        row = [name]
        for w, b in columns:
            one, base = cells[name, w, b], cells["small groups" if "small" in name else "staleflow", w, b]
            ratio, ages = results.ratio(one, base), results.mean(one, "staleness_mean")
            change = number(None if ratio is None else ratio - 1, "+.1%")
            row.append(f"{f'{number(results.mean(one))}/s' if one == base else change} ({number(ages)})")
        rows.append(row)
    header = ["switched", *[f"{w}, bound {b}" for w, b in columns]]
    note = "Change of throughput against staleflow (mean staleness)."
    return [Table("Ablation", header, rows, note)], results.records()


def mixed(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """Half of the instances at 0.4 of the speed: does the fit of each one's own speed pay?"""
    rules: dict[str, dict[str, Any]] = {"staleflow": {}, "one speed for all": {"cost_model": "published"},
                                        "greedy": {"strategy": "greedy"}}  # fmt: skip
    keys = [(w, b) for w in WORKLOADS for b in (1, 3)]
    slow = {(name, *key): cell(*key, **own, shape="mixed") for name, own in rules.items() for key in keys}
    even = {key: cell(*key) for key in keys}
    results, rows = Results(runner, [*slow.values(), *even.values()]), []
    for key in keys:
        ours = slow["staleflow", *key]
        against = [number(results.ratio(ours, slow[name, *key])) for name in rules if name != "staleflow"]
        age = number(results.mean(ours, "staleness_mean"))
        kept = number(results.ratio(ours, even[key]))
        rows.append([key[0], str(key[1]), number(results.mean(ours)), age, kept, *against])
    header = ["workload", "bound", "traj/s", "staleness", "x all fast", "x one speed for all", "x greedy"]
    note = "The cluster has 0.70 of the speed of one whose instances are all fast."
    return [Table("Instances of two speeds", header, rows, note)], results.records()
