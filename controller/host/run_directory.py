"""The folder of a run, and the lock that reserves it for one controller.

Invariants: one live controller per folder; nothing of an older run is overwritten or deleted: it is resumed,
or set aside under the next free number, from which the prepared model is moved back; `address`, the socket
and the run's shared memory exist only while the run does.
"""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from controller.config.models import Config
from controller.config.yaml_file import write_yaml
from controller.durability.holder import in_use, mark, open_lock, own_place, take
from controller.host.log_file import log_to_file
from protocol.errors import ConfigError, RunError
from protocol.files import OTHERS, exists, is_file
from protocol.model_files import note_of
from protocol.segments import hold, remove, segment_directory, sweep, this_host
from protocol.wire.security import WorkerKey, write_local_key

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
MAX_DATABASE_PATH = 504  # bytes; SQLite opens no longer one
MAX_SOCKET_PATH = 100  # bytes; a Unix socket's path is cut off at 107


class RunDirectory:
    """`<run.dir>/<run.name>`, or the run that `run.resume` names, locked."""

    def __init__(self, config: Config) -> None:
        """Lock the folder; if there is no run to resume, set aside what is there and begin.

        Raises: ConfigError if it is in use or unwritable, or not the run that `run.resume` promises.
        """
        self._config = config
        self.path = _folder(config)
        self.model = self.path / config.model.path
        """Where a model factory puts the initial model; `model.json` beside it names its origin."""
        first = Path(config.model.path).parts[0]
        is_made_inside = config.model.factory and first not in ("/", "..")
        self._kept = (first, f"{first}.json") if is_made_inside else ()
        self._metrics: IO[str] | None = None
        self._evaluations: IO[str] | None = None
        self._has_journal = False  # whether run.db was seen
        self._is_locked = False
        self._ended = ""  # summary.json of the run that is to go on, until that has ended again
        self._socket_dir: Path | None = None
        self._socket: Path | None = None
        self._hold: IO[bytes] | None = None
        self._segments = segment_directory(self.path, host=this_host(), base=config.weights.directory)
        self.previous: Path | None = None
        """Where the older run lies now; None if none was set aside."""
        self._folder_mode, self._file_mode = (0o700, 0o600) if config.run.private else (0o777, 0o666)
        with self.in_words():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open_lock(self.path)
        try:
            with self.in_words():
                self._take_lock()
                (self.path / "address").unlink(missing_ok=True)  # of a controller that was killed
                sweep(config.weights.directory, keep=self._segments)
                may_go_on = config.run.resume != "never" and config.run.durability != "off"
                self.has_run = may_go_on and exists(self.path / "run.db")
                """Whether there is a run to resume: then call `go_on` or `begin`."""
                if not self.has_run:
                    self.begin(is_blank=may_go_on and self._is_blank())
        except BaseException:  # such as Ctrl-C in a notebook, which keeps the traceback and so the file
            self._let_go()
            raise

    def begin(self, *, is_blank: bool = False) -> None:
        """Set an older run aside, and make the folder again.

        A run that was stopped before it had begun (`is_blank`) has nothing to keep, and is begun in place.
        Raises: ConfigError.
        """
        with self.in_words():
            remove(self._segments, even_if_held=True)  # the lock excludes a living run
            self.previous, self.has_run = None if is_blank else self._set_aside(), False
            for suffix in ("", "-wal", "-shm"):
                (self.path / f"run.db{suffix}").unlink(missing_ok=True)
            self._open()

    def go_on(self, lines: Sequence[str], evaluations: list[dict[str, object]], weights_were_in: str) -> None:
        """Resume the run in the folder.

        `lines`: of its metrics.jsonl, in JSON; `evaluations`: of its evaluations.jsonl; `weights_were_in`:
        its earlier `weights.directory`, where versions may be left. Raises: ConfigError.
        """
        with self.in_words():
            sweep(weights_were_in, keep=self._segments)
            self._write_atomically(METRICS, _joined(lines))
            if evaluations:
                self._write_atomically(EVALUATIONS, _joined(map(json.dumps, evaluations)))
            else:
                (self.path / EVALUATIONS).unlink(missing_ok=True)
            if exists(summary := self.path / "summary.json"):
                self._ended = summary.read_text()
                summary.unlink()
            self._open()

    def set_aside(self, name: str) -> Path | None:
        """Rename a file of the run, with the next free number behind its name.

        Returns where it is now; None if it was not there. Raises: OSError.
        """
        path = self.path / name
        return path.rename(numbered(path)) if exists(path) else None

    def _open(self) -> None:
        # other runs sweep segments that no process holds, and all workers may be dead at once
        try:
            self._hold = hold(self._segments)
        except OSError as error:
            raise ConfigError(
                f"{self._segments}, which is for policy versions, cannot be made: {error.strerror}. Expected "
                "a folder with free space that you may write to; set `weights.directory` to one."
            ) from error
        self.path.mkdir(mode=self._folder_mode, parents=True, exist_ok=True)
        self.logs.mkdir(mode=self._folder_mode, exist_ok=True)
        if self._config.run.private:
            self._close_to_others()
        tree = self._config.as_written().model_dump(mode="json")
        self._write_atomically("config.yaml", write_yaml(tree))
        self._metrics = self._open_file(self.path / METRICS, "a")

    @property
    def logs(self) -> Path:
        """Folder with one log per process."""
        return self.path / "logs"

    def begin_log(self, *, level: str, stack: ExitStack) -> None:
        """Log to logs/controller.log, as `log_to_file`. Raises: ConfigError."""
        with self.in_words():
            log_to_file(self.logs / "controller.log", level=level, stack=stack)

    def endpoint(self, bind: str) -> str:
        """The endpoint to listen at: `bind`, or for `auto` a Unix socket that only this user can reach.

        Raises: ConfigError.
        """
        if bind != "auto":
            self._socket = Path(bind.removeprefix("ipc://")) if bind.startswith("ipc://") else None
            return bind
        folder = self.path / "socket"
        with self.in_words():
            if len(os.fsencode(folder)) + len("/controller") > MAX_SOCKET_PATH:
                folder = _short_folder(self.path)
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)  # one that a killed run left may have been opened to others since
        self._socket_dir, self._socket = folder, folder / "controller"
        return f"ipc://{self._socket}"

    def lost_socket(self) -> Path | None:
        """The Unix socket at which workers attach, if its file was removed under the run; else None."""
        return self._socket if self._socket is not None and not exists(self._socket) else None

    def has_model(self, origin: str) -> bool:
        """Whether the initial model is there and was made by `origin`, as the note beside it says.

        An outdated one is removed, but one outside of the run directory is refused (ConfigError). A model
        without a note was put there by the user, and is taken as it is; so is the model of a resumed run.
        """
        if exists(self.model):
            note = note_of(self.model)
            if self.has_run or not exists(note) or note.read_text() == origin:
                return True
            if not self._kept:
                raise ConfigError(
                    f"{self.model} was made with another seed, factory, or text of the factory's file "
                    f"({note.name} says which). It is outside of the run directory, so it is not replaced. "
                    "Give another model.path, or no model.factory, to begin with this model."
                )
            shutil.rmtree(self.model)
        return False

    def publish_address(self, endpoint: str) -> None:
        """Write the endpoint for workers, for people and for `launch.py attach`. Raises: ConfigError."""
        with self.in_words():
            self._write_atomically("address", endpoint + "\n")

    def publish_key(self, key: WorkerKey) -> Path:
        """Write the key of this controller process, for local workers and all who may read the folder."""
        with self.in_words():
            write_local_key(self.local_key, key)
        return self.local_key

    @property
    def local_key(self) -> Path:
        """The file that `publish_key` writes."""
        return self.path / "local.key"

    def append_metrics(self, metrics: dict[str, object]) -> None:
        """Add a line to metrics.jsonl, readable at once.

        Raises: RunError if the run's files are gone, or the disk is full.
        """
        assert self._metrics is not None
        self._check_files()
        _append(self._metrics, metrics)

    def _check_files(self) -> None:
        """Refuse to write on if the run's files were removed or renamed: writes would be lost silently."""
        for path in (self.path, self.path / METRICS, self.path / "run.db")[: 2 + self._has_journal]:
            if not exists(path):
                raise RunError(
                    f"{path} was removed or renamed under the run: what it does from now on could neither be "
                    "read nor taken up again. If it was renamed, give it its name back, and the same command "
                    "goes on. If it was removed, start again, with model.path at a checkpoint of the run if "
                    "one is left."
                )
        self._has_journal = exists(self.path / "run.db")

    def append_evaluation(self, metrics: dict[str, object]) -> None:
        """Add a line to evaluations.jsonl, which exists from the first one on.

        Raises: RunError as `append_metrics`.
        """
        self._check_files()
        if self._evaluations is None:
            path = self.path / EVALUATIONS
            with _refusal_in_words(path):
                self._evaluations = self._open_file(path, "a")
        _append(self._evaluations, metrics)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json; it is complete or does not exist."""
        self._ended = ""
        self._write_atomically("summary.json", json.dumps(summary, indent=2) + "\n")

    def write_status(self, text: str) -> None:
        """Write status.json; it is complete or unchanged."""
        self._write_atomically("status.json", text, is_synced=False)

    def close(self) -> None:
        """Remove what must not outlive the run, and release the lock.

        The summary of a run that was to go on, and did not begin, stands again.
        """
        with suppress(OSError):
            if self._ended:
                self._write_atomically("summary.json", self._ended)
        for path in (self.path / "address", self.local_key):
            with suppress(OSError):  # a disk that refuses has ended the run; the next one removes it
                path.unlink(missing_ok=True)
        if self._hold is not None:
            self._hold.close()
        for versions in (self._segments, self.path / "weights"):
            remove(versions, even_if_held=True)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        for file in (self._metrics, self._evaluations):
            if file is not None:
                with suppress(OSError):  # a full disk, reported when a line did not fit
                    file.close()
        self._let_go()

    def _let_go(self) -> None:
        with suppress(OSError):  # a full disk, reported when the lock was taken
            if self._is_locked:  # or a program that goes on would count as the controller
                self._lock.truncate(0)
        with suppress(OSError):
            self._lock.close()

    def _take_lock(self) -> None:
        if not take(self._lock):
            self._lock.seek(0)
            owner = next(iter(self._lock.read().split()), "unknown")
            raise ConfigError(in_use(self.path, owner))
        self._is_locked = True
        self._lock.truncate(0)
        self._lock.write(mark())
        self._lock.flush()

    def _is_blank(self) -> bool:
        """Whether a controller was killed here before it had so much as run.db."""
        files = [file for name in (METRICS, EVALUATIONS) if is_file(file := self.path / name)]
        has_lines = any(file.stat().st_size > 0 for file in files)
        return not has_lines and not any(exists(self.path / n) for n in ("summary.json", "checkpoints"))

    def _set_aside(self) -> Path | None:
        if not exists(self.path) or all(entry.name in self._kept for entry in self.path.iterdir()):
            return None
        aside = self.path.rename(numbered(self.path))
        self.path.mkdir(mode=self._folder_mode)
        for name in self._kept:
            if exists(aside / name):
                (aside / name).rename(self.path / name)
        return aside

    def _write_atomically(self, name: str, text: str, *, is_synced: bool = True) -> None:
        aside = self.path / f".{name}.new"
        with self._open_file(aside, "w") as file:
            file.write(text)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(self.path / name)

    def _open_file(self, path: Path, how: str) -> IO[str]:
        def opener(name: str, flags: int) -> int:
            return os.open(name, flags, self._file_mode)

        return open(path, how, encoding="utf-8", opener=opener)

    def _close_to_others(self) -> None:
        """Revoke access of others to files from before the run was private; links are not followed."""
        for folder, folders, files in os.walk(self.path):
            for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
                with suppress(FileNotFoundError):  # removed by a worker that was just ending
                    mode = path.lstat().st_mode
                    if mode & OTHERS and not stat.S_ISLNK(mode):
                        path.chmod(stat.S_IMODE(mode) & ~OTHERS)

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Around what writes into the folder: a disk that refuses is a ConfigError, which says what to do."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"The run directory {self.path} cannot be written: {error.strerror}. Expected a folder on a "
                "local disk with free space that you may write to; set run.dir to one."
            ) from error


def numbered(path: Path) -> Path:
    """The path with the next free number behind its name."""
    return next(there for n in count(1) if not exists(there := path.with_name(f"{path.name}.{n}")))


def _append(file: IO[str], line: dict[str, object]) -> None:
    with _refusal_in_words(file.name):
        file.write(json.dumps(line) + "\n")
        file.flush()


@contextmanager
def _refusal_in_words(file: str | Path) -> Iterator[None]:
    """Around what writes a file of a run: a disk that refuses is a RunError, which says what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{file} cannot be written: {error.strerror}. Expected a disk with free space; make some, "
            "and the same command goes on with the run."
        ) from error


def _short_folder(run: Path) -> Path:
    """A folder for the run's socket under a short path, for this user only.

    It has one name, under which the next controller finds what a killed one left; another one if somebody
    else has made it. No sweep of policy versions (protocol/segments.py) takes it for one of theirs.
    """
    digest = hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"staleflow-socket-{os.getuid()}-{digest}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="staleflow-"))


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _folder(config: Config) -> Path:
    resume, name = config.run.resume, config.run.name
    if resume not in ("auto", "never"):
        if not is_file(Path(resume) / "run.db"):
            raise ConfigError(
                f"run.resume is {resume!r}, and there is no run.db in it, nor is it a checkpoint. Expected "
                "`auto`, `never`, the directory of a run that is to go on, or a checkpoint to begin from."
            )
        return own_place(Path(resume))
    if not name or name != Path(name).name or name == "..":
        raise ConfigError(f"run.name is {name!r}; expected a plain folder name such as `quickstart`.")
    folder = Path(config.run.dir).resolve() / name
    if folder.is_symlink() and not exists(folder):
        raise ConfigError(
            f"{folder} is a link to {folder.readlink()}, which is not there. Mount the disk that it is on, "
            "or remove the link to begin another run."
        )
    if (length := len(os.fsencode(folder.resolve() / "run.db"))) > MAX_DATABASE_PATH:
        raise ConfigError(
            f"The path of run.db in {folder} has {length} bytes; expected {MAX_DATABASE_PATH} at most, as "
            "SQLite opens no longer one. Set run.dir to a shorter folder."
        )
    return own_place(folder)
