"""Reports a comparison: a table for people, results.json for programs, two plots.

Invariants: every number of the table is in results.json, or follows from it; matplotlib is imported when a
plot is drawn, and draws without a display.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.simulation.compare import Cell, Row
from controller.simulation.intervals import half_width, with_interval

COLUMNS = (
    "strategy", "bound", "traj/s", "tokens/s", "x sync", "of bound", "idle trainer", "idle rollout",
    "staleness", "by age", "violations", "wasted", "re-prefilled",
)  # fmt: skip
MARKERS = "osD^vP*"


def cells_of(row: Row) -> list[str]:
    """A row of the table, in the order of COLUMNS."""
    if len(row.failures) == len(row.cells):
        return [row.strategy, str(row.max_staleness), "failed", *["-"] * (len(COLUMNS) - 3)]
    speed, rates = row.mean("trajectories_per_s"), row.values("tokens_per_s")
    tokens = max(1.0, sum(rate * s for rate, s in zip(rates, row.values("seconds"), strict=True)))
    oldest = max(row.ages, default=0)
    ages = " ".join(f"{age}:{share:.0%}" for age, share in row.ages.items() if share >= 0.005)
    return [
        row.strategy,
        str(row.max_staleness),
        with_interval(row.values("trajectories_per_s")),
        with_interval(row.values("tokens_per_s"), ",.0f"),
        f"{speed / row.sync:.2f}" if row.sync else "-",
        "-" if row.share_of_bound is None else f"{row.share_of_bound:.2f}",
        f"{row.mean('trainer_idle'):.0%}",
        f"{row.mean('rollout_idle'):.0%}",
        f"{row.mean('staleness_mean'):.2f}/{oldest}",
        ages,
        str(row.total("violations")),
        f"{row.total('wasted_tokens') / tokens:.1%}",
        f"{row.total('reprefilled_tokens') / tokens:.1%}",
    ]


def print_table(rows: Sequence[Row], *, is_plain: bool) -> None:
    """The comparison as a table: with rich on a terminal, else as plain columns."""
    if not is_plain:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("strategy", "by age") else "right")
        for row in rows:
            table.add_row(*cells_of(row))
        Console().print(table)
    else:
        lines = [list(COLUMNS), *(cells_of(row) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        for line in lines:
            print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print(
        "\nwasted and re-prefilled are shares of the trained tokens; `of bound` is the share of what a\n"
        "clairvoyant scheduler could at most reach under the same bound. ± is half of the 95 % interval of\n"
        "a mean over the seeds (Student's t)."
    )
    for row in rows:
        for reason in row.failures[:1]:
            print(f"{row.strategy} at bound {row.max_staleness} failed: {reason}")


def write_results(rows: Sequence[Row], folder: Path) -> None:
    """Write results.json: every row with its upper bounds, every run with its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([_row_record(row) for row in rows], indent=1)
    (folder / "results.json").write_text(text, encoding="utf-8")


def write_plots(rows: Sequence[Row], folder: Path) -> None:
    """Write throughput.{svg,png}, by staleness bound, and load.{svg,png}, the instances over time."""
    import matplotlib  # late: only plots need it

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "staleflow", "font.size": 9}):
        _plot_throughput(rows, folder)
        _plot_load(rows, folder)


def _row_record(row: Row) -> dict[str, Any]:
    return {
        "strategy": row.strategy,
        "max_staleness": row.max_staleness,
        "trajectories_per_s": row.mean("trajectories_per_s"),
        "trajectories_per_s_half_width": half_width(row.values("trajectories_per_s")),
        "ratio_to_sync": row.mean("trajectories_per_s") / row.sync if row.sync else None,
        "share_of_bound": row.share_of_bound,
        "upper_bound": row.upper_bound,
        "hardware_bound": row.hardware_bound,
        "runs": [_cell_record(cell) for cell in row.cells],
    }


def _cell_record(cell: Cell) -> dict[str, Any]:
    figures = asdict(cell.figures) if cell.figures else None
    return {"seed": cell.seed, "events": cell.events, "failure": cell.reason, "figures": figures}


def _plot_throughput(rows: Sequence[Row], folder: Path) -> None:
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for i, strategy in enumerate(dict.fromkeys(row.strategy for row in rows)):
        own = [row for row in rows if row.strategy == strategy and len(row.failures) < len(row.cells)]
        bounds = [row.max_staleness for row in own]
        speeds = [row.mean("trajectories_per_s") for row in own]
        axes.plot(bounds, speeds, marker=MARKERS[i % len(MARKERS)], color=f"C{i}", label=strategy)
    limits = sorted({row.max_staleness: row.upper_bound for row in rows if row.upper_bound}.items())
    if limits:
        axes.plot(*zip(*limits, strict=True), color="black", linestyle="--", linewidth=1, label="upper bound")
    axes.axhline(max(row.hardware_bound for row in rows), color="grey", linestyle=":", linewidth=1,
                 label="hardware")  # fmt: skip
    axes.set(xlabel="bound on staleness (versions)", ylabel="trajectories/s", ylim=(0, None))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
    axes.legend(frameon=False, fontsize=8)
    _save(figure, folder / "throughput")


def _plot_load(rows: Sequence[Row], folder: Path) -> None:
    shown = [row for row in rows if row.cells[0].figures is not None]
    shown = [row for row in shown if row.max_staleness == max(r.max_staleness for r in shown
             if r.strategy == row.strategy)]  # fmt: skip
    if shown:
        _save(load_figure(shown), folder / "load")


def load_figure(shown: Sequence[Row]) -> Any:
    """A figure of the running responses of each instance over time, one strip per row."""
    from matplotlib import pyplot, ticker

    size = (7.0, 0.6 + 1.4 * len(shown))
    figure, all_axes = pyplot.subplots(
        len(shown), figsize=size, layout="constrained", squeeze=False, sharex=True
    )
    most = max(max(line, default=0) for row in shown for line in row.cells[0].load.running) or 1
    for row, axes in zip(shown, all_axes[:, 0], strict=True):
        load = row.cells[0].load
        width = max(len(line) for line in load.running)
        grid = [[line[i] if i < len(line) else 0 for line in load.running] for i in range(width)]
        extent = (0.0, load.times[-1], width - 0.5, -0.5)  # the middle of a row is its instance's number
        image = axes.imshow(grid, aspect="auto", extent=extent, vmin=0, vmax=most, interpolation="nearest")
        axes.set_ylabel("instance")
        axes.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.set_title(f"{row.strategy}, bound {row.max_staleness}", fontsize=9, loc="left")
    longest = max(row.cells[0].load.times[-1] for row in shown)
    all_axes[-1, 0].set(xlabel="virtual seconds", xlim=(0.0, longest))
    whole = ticker.MaxNLocator(integer=True, min_n_ticks=1)
    figure.colorbar(image, ax=list(all_axes[:, 0]), label="responses running", ticks=whole)
    return figure


def _save(figure: Any, stem: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=150)
    pyplot.close(figure)
