"""The folder that a run leaves behind, and the lock that keeps it to one controller.

Invariants: one live controller per folder; nothing of an older run is overwritten or deleted, it is set aside
under the next free number; the prepared model stays where it is; `address` and the socket exist only while
the run does.
"""

import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

import yaml

from controller.config import Config
from protocol.errors import ConfigError

MAX_SOCKET_PATH = 100  # bytes; a Unix socket's path is cut off at 107


class RunDirectory:
    """`<run.dir>/<run.name>`, made, locked and empty but for the prepared model."""

    def __init__(self, config: Config) -> None:
        """Set an older run aside and make the folder. Raises: ConfigError if it is in use or unwritable."""
        name = config.run.name
        if not name or name != Path(name).name or name == "..":
            raise ConfigError(f"run.name is {name!r}; expected a plain folder name such as `quickstart`.")
        self.path = Path(config.run.dir).resolve() / name
        self.model = self.path / config.model.path
        """Where a model factory puts the initial model; `model.json` beside it says what it was made by."""
        first = Path(config.model.path).parts[0]
        self._kept = (first, f"{first}.json") if config.model.factory else ()
        self._metrics: IO[str] | None = None
        self._socket_dir: Path | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path.parent / f".{name}.lock", "a+")  # noqa: SIM115  # held until close
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._take_lock()
            self.previous = self._set_aside()
            """Where the older run lies now; None if there was none."""
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            self._write_atomically(
                "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
            )
            self._metrics = open(self.path / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            self._lock.close()
            raise self._unwritable(error) from error
        except ConfigError:
            self._lock.close()
            raise

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.path / "logs"

    def endpoint(self, bind: str) -> str:
        """Where to listen: `bind`, or for `auto` a Unix socket that only this user can reach."""
        if bind != "auto":
            return bind
        folder = self.path / "socket"
        if len(os.fsencode(folder)) + len("/controller") > MAX_SOCKET_PATH:
            folder = Path(tempfile.mkdtemp(prefix="staleflow-"))
        folder.mkdir(mode=0o700, exist_ok=True)
        self._socket_dir = folder
        return f"ipc://{folder}/controller"

    def has_model(self, origin: str) -> bool:
        """Whether the initial model is there and was made by `origin`; if not, room is made and `origin`
        noted.

        A model without a note was put there by the user, and is taken as it is.
        """
        note = self.model.with_name(f"{self.model.name}.json")
        if self.model.exists():
            if not note.exists() or note.read_text() == origin:
                return True
            shutil.rmtree(self.model)
        self.model.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(origin)
        return False

    def publish_address(self, endpoint: str) -> None:
        """Write where workers attach, for people and for `launch.py attach`."""
        self._write_atomically("address", endpoint + "\n")

    def append_metrics(self, metrics: dict[str, object]) -> None:
        """One more line of metrics.jsonl, readable at once."""
        assert self._metrics is not None
        self._metrics.write(json.dumps(metrics) + "\n")
        self._metrics.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """summary.json, complete or not there."""
        self._write_atomically("summary.json", json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        """Remove what must not outlive the run, and let go of the folder."""
        (self.path / "address").unlink(missing_ok=True)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        if self._metrics is not None:
            self._metrics.close()
        self._lock.close()

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise ConfigError(
                f"{self.path} is in use by the controller with pid {owner}. Wait for it, stop it, or choose "
                "another run.name."
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def _set_aside(self) -> Path | None:
        if not self.path.exists() or all(entry.name in self._kept for entry in self.path.iterdir()):
            return None
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        self.path.rename(aside)
        self.path.mkdir()
        for name in self._kept:
            if (aside / name).exists():
                (aside / name).rename(self.path / name)
        return aside

    def _write_atomically(self, name: str, text: str) -> None:
        aside = self.path / f".{name}.new"
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / name)

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"The run directory {self.path} cannot be written: {error.strerror}. Expected a folder on a "
            "local disk with free space that you may write to; set run.dir to one."
        )
