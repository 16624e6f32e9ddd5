"""`launch.py render`: writes files that start a run on a cluster.

Invariant: nothing is started or submitted; files are written to the given folder, or printed.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from controller.cli.command_line import ConfigPath, Overrides
from controller.cluster.render import render_kubernetes, render_slurm
from controller.config.load import load_config
from protocol.errors import ConfigError

RENDERERS = {"slurm": render_slurm, "kubernetes": render_kubernetes}


def render(
    where: Annotated[Literal["slurm", "kubernetes"], typer.Argument(help="What the cluster runs.")],
    config: ConfigPath,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where the files go; else printed.")
    ] = None,
) -> None:
    """Write the files that start the controller, trainer and rollout workers on Slurm or Kubernetes."""
    words = overrides or ()
    files = RENDERERS[where](load_config(config, words), config, words)
    if output is None:
        for name, text in files.items():
            print(f"# ---- {name}\n{text}")
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / name).write_text(text)
            if name.endswith(".sh"):
                (output / name).chmod(0o755)
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}. Give another -o."
        ) from error
    script = next(name for name in files if name.endswith(".sh"))
    print(f"{', '.join(files)} are in {output}; {output / script} starts the run.")
