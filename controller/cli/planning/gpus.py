"""`launch.py simulate --gpus N`: the split of devices, bound and cap that train most tokens per second."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from controller.cli import needs
from controller.cli.looking.history import ReadingProgress
from controller.cli.planning.output import made_folder
from controller.cli.say import say
from controller.config.load import change_config
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.simulation.from_run import ENDLESS, STEPS, predict
from controller.simulation.splits import Point, best_splits, caps_of, chosen, front
from controller.simulation.whatif import measure
from protocol.errors import ConfigError

HEAD = ("ranks", "instances", "bound", "cap", "tokens/s", "staleness", "idle trainer", "idle rollout")


def plan(
    config: Config,
    gpus: int,
    bounds: Sequence[int],
    seeds: Sequence[int],
    *,
    most_staleness: float | None,
    output: str,
    error: float | None = None,
) -> None:
    """Search splits, and print the Pareto front, the best split and its overrides.

    `error`: relative error of simulating the run itself, if the cluster is that of a run.
    Raises: ConfigError if there is no split, or none with so little staleness.
    """
    if output:
        needs.require_extras("simulate", "plots", reason="-o draws a plot")
        made_folder(output)
    began = time.monotonic()

    def tell(point: Point) -> None:
        words = f"{' '.join(point.split.overrides)}: {point.tokens_per_s:,.0f} tokens/s"
        print(f"[{time.monotonic() - began:5.0f} s] {words}", file=sys.stderr, flush=True)

    pairs = sum(len(caps_of(bound)) for bound in bounds)
    words = f"{pairs} pairs of bound and cap, and of each the best split is looked for"
    print(f"[    0 s] {words}; fewer run.steps take less time.", file=sys.stderr, flush=True)
    points = best_splits(config, gpus, bounds=bounds, seeds=seeds, on_point=tell)
    best, fresh = chosen(points, most_staleness), front(points)
    if output:
        write(points, fresh, Path(output))
    if best is None:
        raise ConfigError(
            f"No split of {gpus} devices has a mean staleness of {most_staleness:g} or less; the freshest "
            f"has {fresh[0].staleness_mean:.2f}. Expected --staleness of that at least, or --bounds with 0."
        )
    say("\n".join(in_words(fresh, best, gpus, error)))
    if output:
        say(f"splits.json and pareto.svg (and .png) are in {output}")


def config_of_run(run: str) -> tuple[Config, float | None]:
    """The run's configuration with a cluster like its own, and the relative error of its simulation.

    Raises: ConfigError or RunError if the run cannot be simulated.
    """
    progress = ReadingProgress()
    with Recording(run, on_progress=progress.at_event) as recording:
        error = predict(recording, (), tell=progress.say).error
        measured = measure(recording)
        more = [
            *measured.cluster(recording.path), f"reward.workers={measured.text_workers}",
            f"run.steps={STEPS}", f"controller.respawns={ENDLESS}", "trainer.local=true",
            "simulation.workload.kind=trace", f"simulation.workload.trace={Path(run).resolve()}",
        ]  # fmt: skip
        return change_config(recording.config(), more), error


def in_words(fresh: Sequence[Point], best: Point, gpus: int, error: float | None) -> list[str]:
    """The front as a table, and the overrides to copy."""
    rows = [HEAD, *(_row(point) for point in fresh)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    off = "" if error is None else f" Simulated as it was, the run is off by {error:+.1%} of its tokens/s."
    return [
        f"Splits of {gpus} devices of which none is both faster and fresher:",
        *lines,
        f"Trained tokens per second and mean staleness in the simulator, which is no measurement.{off}",
        f"Best: {' '.join(best.split.overrides)}",
    ]


def write(points: Sequence[Point], fresh: Sequence[Point], folder: Path) -> None:
    """splits.json with every point, and pareto.{svg,png}."""
    records = [
        {**point.split._asdict(), **asdict(point), "split": point.split.overrides, "is_front": point in fresh}
        for point in points
    ]
    (folder / "splits.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    import matplotlib  # late: only the plot needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for shown, colour, line in ((points, "grey", ""), (fresh, "C0", "-")):
        ages, speeds = [p.staleness_mean for p in shown], [p.tokens_per_s for p in shown]
        axes.plot(ages, speeds, marker="o", color=colour, linestyle=line)
    for point in fresh:
        text = f"{point.split.ranks} + {point.split.instances}"
        axes.annotate(text, (point.staleness_mean, point.tokens_per_s), xytext=(4, -10), fontsize=8,
                      textcoords="offset points")  # fmt: skip
    axes.margins(x=0.12)  # for the words beside the points
    axes.set(xlabel="mean staleness (versions)", ylabel="trained tokens/s", ylim=(0, None),
             title="trainer ranks + rollout instances")  # fmt: skip
    for kind in ("svg", "png"):
        figure.savefig(folder / f"pareto.{kind}", dpi=150)
    pyplot.close(figure)


def _row(point: Point) -> tuple[str, ...]:
    width = "" if point.half_width is None else f" ±{point.half_width:,.0f}"
    return (
        *(f"{value:g}" for value in point.split),
        f"{point.tokens_per_s:,.0f}{width}",
        f"{point.staleness_mean:.2f}",
        f"{point.trainer_idle:.0%}",
        f"{point.rollout_idle:.0%}",
    )
