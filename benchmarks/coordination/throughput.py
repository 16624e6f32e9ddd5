"""The part of the benchmark that compares every preset on every workload, bound and cluster.

Invariants: as in `parts`; a share is of the clairvoyant upper bound for the same workload, bound, cluster and
publishing.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from benchmarks.coordination.cells import WORKLOADS, Runner, cell
from benchmarks.coordination.one_speed import one_speed_bound
from benchmarks.coordination.parts import BOUNDS, PRESETS, Results, Table, number, share
from controller.simulation.bounds import throughput_bound

AIMS = {"lognormal": 0.90, "bimodal": 0.93, "power_law": 0.85, "uniform": 0.97}  # bound 3, single
ALL_IN_FLIGHT = {"publish": "early", "in_flight_batches": "all"}
BARE = {"lognormal": 0.84, "bimodal": 0.90, "power_law": 0.72, "uniform": 0.95}  # published, early


def throughput(
    runner: Runner, *, shapes: tuple[str, ...] = ("single", "groups", "tied")
) -> tuple[list[Table], list[dict[str, Any]]]:
    """Every preset on every workload, bound and cluster, with the KV cache kept and thrown away."""
    tables, records = [], []
    for shape in shapes:
        how = {"shape": shape, "steps": min(runner.steps, 41 if shape == "single" else 31)}
        own = [
            cell(w, b, name, **how, **rules)
            for name, rules in _kinds(shape)
            for w in WORKLOADS
            for b in BOUNDS
        ]
        results = Results(runner, list(dict.fromkeys(own)))
        tables += [_shares(results, how), _kept_and_not(results, how)]
        tables += [_early(results, how)] if shape == "single" else []
        records += results.records()
    return tables, records


def _kinds(shape: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Presets and what else they run with, what matters most first."""
    for name in ("staleflow", "greedy"):
        yield name, {}
    for name in ("staleflow", "greedy"):
        if shape == "single":
            yield name, {"publish": "early"}
    if shape == "single":
        yield "staleflow", ALL_IN_FLIGHT
    for name in ("staleflow", "greedy"):
        yield name, {"keep_kv": False}
    for name in PRESETS[2:]:
        yield name, {}


def _rows() -> Iterator[tuple[str, int]]:
    return ((workload, bound) for workload in WORKLOADS for bound in BOUNDS)


def _shares(results: Results, how: dict[str, Any]) -> Table:
    rows = []
    for workload, bound in _rows():
        ours = cell(workload, bound, **how)
        upper = results.mean(ours, "upper_bound")
        rivals = [one for one in (cell(workload, bound, name, **how) for name in PRESETS[1:])
                  if one.bound <= bound]  # fmt: skip
        best = results.best(rivals)
        lead = results.ratio(ours, best) if best else None
        verdict = f"{lead - 1:+.1%} on {dict(best.rules)['strategy']}" if best and lead else "-"
        verdict += " MISS" if lead and lead < 1 else ""
        shares = [share(results, cell(workload, bound, name, **how), upper) for name in PRESETS]
        rows.append([workload, str(bound), number(upper), *shares, verdict, str(len(results.of(ours)))])
    header = ["workload", "bound", "bound/s", *PRESETS, "staleflow on the best strict", "seeds"]
    note = (
        "A cell is the share of the upper bound, which `bound/s` has in trajectories/s. In parentheses: mean "
        "staleness; the share of trajectories over the bound (late); the mean length by that of the draw, if "
        "it is under 0.93 (short). KV is kept, and publishing is honest. `sync` and `one_step` run at bounds "
        "0 and 1 everywhere."
    )
    return Table(f"Throughput, {how['shape']}", header, rows, note)


def _kept_and_not(results: Results, how: dict[str, Any]) -> Table:
    rows = []
    for workload, bound in _rows():
        row = [workload, str(bound)]
        for name in ("staleflow", "greedy"):
            kept = cell(workload, bound, name, **how)
            upper = results.mean(kept, "upper_bound")
            for one in (kept, cell(workload, bound, name, keep_kv=False, **how)):
                found = results.of(one)
                again = [f["reprefilled_tokens"] / (f["tokens_per_s"] * f["seconds"]) for f in found]
                row += [share(results, one, upper), number(fmean(again) if again else None, ".0%")]
        rows.append(row)
    names = [f"{name}{kv}" for name in ("staleflow", "greedy") for kv in ("", ", no KV kept")]
    header = ["workload", "bound", *[text for name in names for text in (name, "re-prefilled")]]
    note = "Re-prefilled tokens as a share of the trained ones."
    return Table(f"Interrupts, {how['shape']}: the KV cache kept and thrown away", header, rows, note)


def _early(results: Results, how: dict[str, Any]) -> Table:
    rows = []
    for workload, bound in _rows():
        ours, bare = (cell(workload, bound, name, publish="early", **how) for name in ("staleflow", "greedy"))
        full = cell(workload, bound, **ALL_IN_FLIGHT, **how)
        upper, rate = results.mean(ours, "upper_bound"), results.mean(ours)
        aim = AIMS[workload] if bound == 3 else None
        is_missed = aim and rate and upper and round(rate / upper, 2) < aim
        alike = one_speed_bound(ours.config) / throughput_bound(ours.config)
        rows.append([workload, str(bound), number(upper), share(results, ours, upper), number(aim),
                     "MISS" if is_missed else "", share(results, full, upper), number(alike),
                     share(results, bare, upper),
                     number(BARE[workload] if bound == 3 else None)])  # fmt: skip
    columns = ["in flight all", "one speed", "greedy", "published"]
    header = ["workload", "bound", "bound/s", "staleflow", "aim", "", *columns]
    note = (
        "The aims were set against a study. This table is on the terms of that study and with its draw of "
        "lengths: new weights are visible when a train step begins, and a transfer stops no instance. No "
        "length is known here; the instances of the study know them and reserve KV. `in flight all`: "
        "staleflow with as many groups in the system as the bound admits, not as few as the coordinator "
        "chooses. `one speed`: what a fluid schedule reaches in which short and long responses decode "
        "equally fast, as they do where nothing tells them apart (an estimate, no bound). `published`: the "
        "bare protocol in the study."
    )
    return Table("Throughput, single, on the terms of the aims", header, rows, note)
