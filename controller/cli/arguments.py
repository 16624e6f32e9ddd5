"""The arguments that several commands have, each said once."""

from typing import Annotated

import typer

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="The configuration.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="key.path=value", help="Override single keys.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")]
RecordedRun = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its run.db.")]
