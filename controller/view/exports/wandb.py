"""Weights & Biases: offline unless WANDB_MODE says otherwise, with one value per step after any crash.

Offline, the run's folder is written anew from metrics.jsonl when a tracker begins, so that what a crash left
is gone; `wandb sync RUN/wandb/offline-run-*` sends it. Online, the server says at which step it goes on.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.view.exports.jsonl_tail import numbers


class Wandb:
    """One run under the id that it keeps."""

    name = "wandb"

    def __init__(self, run: Path, config: Mapping[str, Any], run_id: str) -> None:
        """Raises: ImportError without the package."""
        import wandb

        self._wandb, self._run, self._config, self._id = wandb, run, dict(config), run_id
        self._is_offline = os.environ.get("WANDB_MODE", "offline") == "offline"
        self._open: Any = None
        self._next = 0

    def begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Send all lines that are not there."""
        self.close()
        if self._is_offline:
            for old in (self._run / "wandb").glob(f"offline-run-*-{self._id}"):
                shutil.rmtree(old)
        settings = self._wandb.Settings(
            console="off",
            silent=True,
            x_disable_stats=True,
            x_disable_meta=True,
            disable_git=True,
            disable_code=True,
        )
        self._open = self._wandb.init(
            dir=str(self._run), id=self._id, resume=None if self._is_offline else "allow",
            mode="offline" if self._is_offline else None, name=self._run.name, project="staleflow",
            config=self._config, settings=settings,
        )  # fmt: skip
        self._next = 0 if self._is_offline else int(self._open.step or 0)
        for line in lines:
            self.step(line)

    def step(self, line: Mapping[str, Any]) -> None:
        """One line more; one that the server has is passed over."""
        step = int(line["step"])
        if step >= self._next:
            self._open.log(numbers(dict(line)), step=step)
            self._next = step + 1

    def close(self) -> None:
        """End it in good order."""
        if self._open is not None:
            self._open.finish()
            self._wandb.teardown()  # its own process writes the last lines when it ends
            self._open = None
