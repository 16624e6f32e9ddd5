"""`launch.py simulate`: the production core against simulated workers, as a table and plots.

Invariants: no worker process is started and nothing but the output folder is written; exit code 1 if a
simulated run failed.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import needs
from controller.cli.command_line import ConfigPath, Overrides
from controller.config.load import load_config
from controller.simulation.assumed import in_words
from controller.simulation.compare import Cell, compare, strategies_named
from controller.simulation.report import print_table, write_plots, write_results
from protocol.errors import ConfigError


def simulate(
    config: ConfigPath,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="Seed of lengths and faults; default run.seed.")] = None,
    seeds: Annotated[str, typer.Option(metavar="1,2,3", help="Several seeds; figures are means.")] = "",
    strategies: Annotated[
        str,
        typer.Option("--compare", metavar="a,b,c", help="Strategies, or `all`; default the config's own."),
    ] = "",
    bounds: Annotated[
        str, typer.Option(metavar="1,2,3", help="Values of staleness.max_staleness; default the config's.")
    ] = "",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Where results.json and the plots go.")
    ] = "",
) -> None:
    """Simulate a run in virtual time, for several strategies and bounds, without any GPU."""
    if output:
        needs.require_extras("simulate", "plots", reason="-o draws plots")
    settings = load_config(config, overrides or ())
    if settings.trainer.is_supervised:
        raise ConfigError(
            "trainer.algorithm is sft: nothing is generated, so there is nothing to simulate. Expected an "
            "algorithm of reinforcement learning."
        )
    chosen_seeds = _numbers(seeds, "--seeds") or [settings.run.seed if seed is None else seed]
    began = time.monotonic()
    print("\n".join(in_words(settings)), end="\n\n", flush=True)

    def tell(cell: Cell) -> None:
        speed = f"{cell.figures.trajectories_per_s:.2f} traj/s" if cell.figures else "failed"
        words = f"{cell.strategy} bound {cell.max_staleness} seed {cell.seed}: {speed}, {cell.events} events"
        print(f"[{time.monotonic() - began:5.0f} s] {words}", file=sys.stderr, flush=True)

    rows = compare(
        settings,
        strategies=strategies_named(strategies, settings.staleness.strategy),
        bounds=_numbers(bounds, "--bounds") or [settings.staleness.max_staleness],
        seeds=chosen_seeds,
        on_cell=tell,
    )
    print_table(rows, is_plain=settings.logging.console == "plain" or not sys.stdout.isatty())
    if output:
        write_results(rows, Path(output))
        write_plots(rows, Path(output))
        print(f"results.json, throughput.svg and load.svg (and .png) are in {output}")
    raise typer.Exit(1 if any(row.failures for row in rows) else 0)


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        found = [-1]
    if any(number < 0 for number in found):
        raise ConfigError(f"{option} is {text!r}; expected whole numbers like 1,2,3.")
    return found
