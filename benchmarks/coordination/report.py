"""Makes docs/coordination.md and its plots of what the parts wrote.

Invariant: no figure is written by hand.
"""

import json
from datetime import date
from statistics import fmean
from typing import Any

from benchmarks.coordination.cells import KEPT, ROOT, SOURCES, WORKLOADS
from benchmarks.coordination.parts import BOUNDS, PRESETS, WHOLE_LENGTH, Table

ORDER = (
    "strict",
    "agreement",
    "throughput",
    "groups",
    "freshness",
    "shape",
    "ablation",
    "mixed",
    "cost",
    "cost_compiled",
    "determinism",
)
HEAD = """# The coordinator in figures

This page shows how fast the coordinator is beside the rules of other systems, how fresh its data are, and
what its decisions cost. `python -m benchmarks.coordination` writes it. The figures are of the simulator
([simulation.md](simulation.md)) in virtual time, not of GPUs. No strategy knows a length before it ends.

| cluster | instances | prompts x responses a step | |
| --- | --- | --- | --- |
| `single` | 16 | 512 x 1 | |
| `small` | 16 | 32 x 16 | |
| `groups` | 64 | 128 x 16 | lengths inside a group are independent |
| `tied` | 64 | 128 x 16 | as `groups`, with a correlation of 0.8 |
| `wide` | 128 | 128 x 16 | at most 20,000 tokens |
| `mixed` | 16 | 512 x 1 | every other instance at 0.4 of the speed |

- Nothing is charged for publishing, scoring, pulls beside each other, recomputed logprobs and the
  controller's time. `python -m benchmarks.charged` charges all of that ([simulation.md](simulation.md)).
- MISS marks a cell under its aim, or one in which a strict preset is ahead.
- A dash is a cell that was not run.
- The plots leave out runs that lose long responses (`roll_flash`).
"""


def markdown(table: Table) -> str:
    """A table with its title and note."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
    return f"## {table.title}\n\n{body}\n" + (f"\n{table.note}\n" if table.note else "")


def write() -> None:
    """docs/coordination.md, coordination_throughput.svg, coordination_freshness.svg."""
    import matplotlib  # late: only plots need it

    matplotlib.use("Agg")
    parts = {name: json.loads((KEPT / f"{name}.json").read_text()) for name in ORDER
             if (KEPT / f"{name}.json").exists()}  # fmt: skip
    records = parts.get("throughput", {}).get("records", [])
    text = [HEAD]
    if records:
        _plot_throughput(records)
        _plot_freshness([*records, *parts.get("freshness", {}).get("records", [])])
        text += ["![throughput](coordination_throughput.svg)\n", "![freshness](coordination_freshness.svg)\n"]
    for found in parts.values():
        text += [markdown(Table(**table)) for table in found["tables"]]
    header = ["part", "seeds", "steps at most", "clusters and batches divided by", "minutes", "source"]
    rows = [[name, *(str(found[key]) for key in ("seeds", "steps", "scale")), f"{found['minutes']:.0f}",
             found["source"][:8]] for name, found in parts.items()]  # fmt: skip
    note = f"Written on {date.today():%d %B %Y}. `source` is of a digest of {', '.join(SOURCES)}."
    text.append(markdown(Table("How each part was run last", header, rows, note)))
    (ROOT / "docs" / "coordination.md").write_text("\n".join(text), encoding="utf-8")
    print(ROOT / "docs" / "coordination.md")


def _mean(records: list[dict[str, Any]], name: str, **wanted: Any) -> float | None:
    """Over the records whose fields and rules are exactly these."""
    strategy = wanted.pop("strategy")
    wanted |= {"publish": "honest", "rules": {"strategy": strategy}}
    values = [r[name] for r in records if name in r and all(r[key] == wanted[key] for key in wanted)]
    return fmean(values) if values else None


def _plot_throughput(records: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
    for workload, axes in zip(WORKLOADS, all_axes, strict=True):
        for i, strategy in enumerate(("staleflow", "greedy", "areal", "verl_async")):
            own = [(b, _mean(records, "trajectories_per_s", workload=workload, bound=b, strategy=strategy))
                   for b in BOUNDS]  # fmt: skip
            points = [(b, value) for b, value in own if value is not None]
            style = "-" if strategy in ("staleflow", "greedy") else ":"
            axes.plot(*zip(*points, strict=True) if points else ([], []), style, marker="osD^v"[i],
                      color=f"C{i}", label=strategy)  # fmt: skip
        limit = [
            (b, _mean(records, "upper_bound", workload=workload, bound=b, strategy="staleflow"))
            for b in BOUNDS
        ]
        points = [(b, value) for b, value in limit if value is not None]
        axes.plot(*zip(*points, strict=True) if points else ([], []), "k--", linewidth=1, label="upper bound")
        axes.set(title=workload, xlabel="bound on staleness", xticks=list(BOUNDS), ylim=(0, None))
    all_axes[0].set_ylabel("trajectories/s")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    _save(figure, "coordination_throughput.svg")


def _plot_freshness(records: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
    for workload, axes in zip(WORKLOADS, all_axes, strict=True):
        seen = [r for r in records if r["workload"] == workload and "trajectories_per_s" in r
                and r["publish"] == "honest" and r["rules"].get("keep_kv") is None
                and r["length_ratio"] >= WHOLE_LENGTH]  # fmt: skip
        for i, strategy in enumerate(name for name in PRESETS if name != "roll_flash"):
            for curve in curves([r for r in seen if r["rules"]["strategy"] == strategy]):
                _, ages, speeds = zip(*curve, strict=True)
                axes.plot(ages, speeds, "-", marker="osD^vP*"[i], markersize=4, linewidth=1, color=f"C{i}",
                          label=strategy)  # fmt: skip
                for bound, age, speed in curve:
                    axes.annotate(str(bound), (age, speed), xytext=(3, 3), textcoords="offset points",
                                  fontsize=6, color=f"C{i}")  # fmt: skip
        axes.set(title=workload, xlabel="mean staleness", ylim=(0, None))
    all_axes[0].set_ylabel("trajectories/s")
    handles, labels = all_axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside right center", frameon=False,
                  title="numbers: bound", title_fontsize=8)  # fmt: skip
    _save(figure, "coordination_freshness.svg")


def curves(records: list[dict[str, Any]]) -> list[list[tuple[int, float, float]]]:
    """For each set of rules (bound, mean staleness, trajectories/s) by bound, means over seeds."""
    cells: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for record in records:
        rules = json.dumps(record["rules"], sort_keys=True)
        cells.setdefault(rules, {}).setdefault(record["bound"], []).append(record)
    return [
        [
            (bound, fmean(r["staleness_mean"] for r in own), fmean(r["trajectories_per_s"] for r in own))
            for bound, own in sorted(by_bound.items())
        ]
        for by_bound in cells.values()
    ]


def _save(figure: Any, name: str) -> None:
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "staleflow"}):
        figure.savefig(ROOT / "docs" / name, metadata={"Date": None})
    pyplot.close(figure)
