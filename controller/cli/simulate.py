"""`launch.py simulate`: runs the production core with simulated workers; prints a table, writes plots.

Invariants: no worker process is started, and only the output folder is written; exit code 1 if a simulated
run failed."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import needs
from controller.cli.command_line import Overrides
from controller.cli.planning import from_run, gpus
from controller.cli.planning.filling import filling
from controller.cli.planning.output import made_folder
from controller.config.load import change_config, load_config
from controller.config.models import Config
from controller.simulation.assumed import in_words
from controller.simulation.compare import Cell, compare, strategies_named
from controller.simulation.report import print_table, write_plots, write_results
from protocol.errors import ConfigError

BOUNDS = [0, 1, 2, 4]
"""Values of staleness.max_staleness that --gpus tries."""
MOST_WARNINGS = 10  # most that are printed; with faults a run has one for each
MAX_SEED, MAX_BOUND = 2**31 - 1, 64  # as run.seed and staleness.max_staleness


Seed = Annotated[
    int | None, typer.Option(min=0, max=MAX_SEED, help="Seed of lengths and faults; default run.seed.")
]


def simulate(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG.yaml]", help="The configuration; none with --from.")
    ] = "",
    overrides: Overrides = None,
    of_run: Annotated[
        str, typer.Option("--from", metavar="RUN", help="Simulate this run, as its journal measured it.")
    ] = "",
    at: Annotated[
        float | None,
        typer.Option(help="With --from: second of the run from which a changed strategy decides."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --from: for programs.")] = False,
    seed: Seed = None,
    seeds: Annotated[str, typer.Option(metavar="1,2,3", help="Several seeds; figures are means.")] = "",
    strategies: Annotated[
        str,
        typer.Option("--compare", metavar="a,b,c", help="Strategies, or `all`; default the config's own."),
    ] = "",
    bounds: Annotated[
        str, typer.Option(metavar="1,2,3", help="Values of staleness.max_staleness; default the config's.")
    ] = "",
    devices: Annotated[
        int | None,
        typer.Option("--gpus", min=2, help="Find the best split of so many devices, bound and cap."),
    ] = None,
    staleness: Annotated[
        float | None, typer.Option(min=0.0, help="With --gpus: the most mean staleness; default any.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Where results.json and the plots go.")
    ] = "",
) -> None:
    """Simulate a run in virtual time, for several strategies and bounds, without any GPU."""
    if devices is not None:
        _refuse_beside_gpus(at is not None or as_json or bool(strategies))
        settings, error = _to_split(config, overrides or (), of_run)
        own, tried = _seeds(settings, seed, seeds), _numbers(bounds, "--bounds", MAX_BOUND) or BOUNDS
        gpus.plan(settings, devices, tried, own, most_staleness=staleness, output=output, error=error)
        return
    if staleness is not None:
        raise ConfigError("--staleness chooses among the splits of --gpus N; expected that beside it.")
    if of_run:
        _refuse_beside_from(compare=strategies, bounds=bounds, seed=seed, seeds=seeds, output=output)
        from_run.predict(of_run, [config, *(overrides or ())] if config else [], at=at, as_json=as_json)
        return
    if not config or at is not None or as_json:
        raise ConfigError("Expected a CONFIG.yaml, or --from RUN; --at and --json belong to --from.")
    settings = load_config(config, overrides or ())
    raise typer.Exit(_compare(settings, strategies, bounds, _seeds(settings, seed, seeds), output))


def _refuse_beside_gpus(has_others: bool) -> None:
    if has_others:
        raise ConfigError("--gpus compares splits; leave out --at, --json and --compare beside it.")


def _refuse_beside_from(**others: object) -> None:
    if given := [f"--{name}" for name, value in others.items() if value not in (None, "")]:
        raise ConfigError(
            f"--from RUN simulates what the run was, with one set of changes; leave out {', '.join(given)}. "
            "Give the changes as key=value, or `--gpus N` beside --from for several bounds."
        )


def _to_split(config: str, overrides: Sequence[str], run: str) -> tuple[Config, float | None]:
    """The configuration whose devices are split, and for a run also the error of its simulation."""
    needs.require_extras("simulate", reason="--gpus asks for bounds")
    if run:
        settings, error = gpus.config_of_run(run)
        settings = change_config(settings, [config, *overrides] if config else [])
    elif config:
        settings, error = load_config(config, overrides), None
    else:
        raise ConfigError("Expected a CONFIG.yaml or --from RUN beside --gpus.")
    if settings.trainer.is_supervised:
        raise ConfigError("trainer.algorithm is sft: nothing is generated, so there is nothing to split.")
    return settings, error


def _compare(settings: Config, strategies: str, bounds: str, seeds: list[int], output: str) -> int:
    """Print a comparison, and write it to `output` if given; returns the exit code."""
    if output:
        needs.require_extras("simulate", "plots", reason="-o draws plots")
    if settings.trainer.is_supervised:
        raise ConfigError(
            "trainer.algorithm is sft: nothing is generated, so there is nothing to simulate. Expected an "
            "algorithm of reinforcement learning."
        )
    if output:
        made_folder(output)
    began = time.monotonic()
    assumed = in_words(settings)
    if (filled := filling(settings)) is not None:
        assumed.append(f"Environments as simulation.environment says: {filled.in_words()}.")
    print("\n".join(assumed), end="\n\n", flush=True)

    told = dict[str, None]()

    def tell(cell: Cell) -> None:
        speed = f"{cell.figures.trajectories_per_s:.2f} traj/s" if cell.figures else "failed"
        words = f"{cell.strategy} bound {cell.max_staleness} seed {cell.seed}: {speed}, {cell.events} events"
        print(f"[{time.monotonic() - began:5.0f} s] {words}", file=sys.stderr, flush=True)
        for text in new_warnings(told, cell.warnings):
            print(f"warning: {text}", file=sys.stderr, flush=True)

    rows = compare(
        settings,
        strategies=strategies_named(strategies, settings.staleness.strategy),
        bounds=_numbers(bounds, "--bounds", MAX_BOUND) or [settings.staleness.max_staleness],
        seeds=seeds,
        on_cell=tell,
    )
    print_table(rows, is_plain=settings.logging.console == "plain" or not sys.stdout.isatty())
    if output:
        write_results(rows, Path(output))
        write_plots(rows, Path(output))
        print(f"results.json, throughput.svg and load.svg (and .png) are in {output}")
    return 1 if any(row.failures for row in rows) else 0


def new_warnings(told: dict[str, None], warnings: Sequence[str]) -> list[str]:
    """Warnings that were not printed yet, each once, MOST_WARNINGS in all. `told` remembers them."""
    found: list[str] = []
    for text in warnings:
        if text not in told and len(told) <= MOST_WARNINGS:
            is_last = len(told) == MOST_WARNINGS
            told[text] = None
            found.append("There are more warnings, which are not told." if is_last else text)
    return found


def _seeds(settings: Config, seed: int | None, seeds: str) -> list[int]:
    if seed is not None and seeds:
        raise ConfigError("--seed and --seeds say the same; expected one of them.")
    return _numbers(seeds, "--seeds", MAX_SEED) or [settings.run.seed if seed is None else seed]


def _numbers(text: str, option: str, most: int) -> list[int]:
    if not text:
        return []
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [-1]
    if any(not 0 <= number <= most for number in found):
        raise ConfigError(f"{option} is {text!r}; expected whole numbers like 1,2,3, at most {most}.")
    if len(set(found)) < len(found):
        raise ConfigError(f"{option} is {text!r}, with a number more than once; expected each once.")
    return found
