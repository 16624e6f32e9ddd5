"""Keys: which workers may attach in which roles, and the authenticator that checks keys before any message.

Invariants:
- A secret lies only in files that their owner alone can read; the controller keeps no worker's secret.
- A connection is admitted by its key, if it is in the folder of keys at that moment; a name or a role that a
  worker merely claims does not count.
- No connection is admitted while the authenticator does not answer: ZAP_ENFORCE_DOMAIN is set, without which
  libzmq would admit all. An error inside the authenticator is a refusal.

A folder of keys: `server.key` (secret), `workers/NAME.json` (public half of each key that is admitted, and
its roles; deleting it revokes it), `NAME.key` (what the worker's machine needs, to be taken there).
"""

import asyncio
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import zmq
from pydantic import ValidationError
from zmq.utils import z85

from protocol.errors import ConfigError
from protocol.files import exists, is_dir
from protocol.messages import Role
from protocol.settings import Section
from protocol.wire.grants import RESERVED, ROLES, Grant, GrantFolder, Key

DOMAIN = b"staleflow"
CHANNEL_ROLES: tuple[Role, ...] = ("rollout", "trainer")  # roles that pull or publish policy versions
OWN_KEY = "local"  # name of the key that a controller makes for its own processes, again at each start
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Socket = zmq.Socket[Any]  # a plain one, or one of asyncio
FileKind = TypeVar("FileKind", bound=Section)


class ServerKey(Section):
    """The key pair of the controller."""

    public: Key
    secret: Key


class WorkerKey(Grant):
    """The key pair of one worker, and the public key by which it recognizes the server."""

    secret: Key
    server: Key


def make_keys(directory: Path, name: str | None = None, roles: tuple[Role, ...] = ()) -> Path | None:
    """Make the folder and the server's key pair if they are missing, and a worker's key if one is named.

    Returns the worker's key file. Raises: ConfigError if the name is unfit or taken, or the folder refuses.
    """
    if name is not None:
        refuse_key(directory, name)
    try:
        _make_folders(directory)
        if not exists(directory / "server.key"):
            public, secret = _pair()
            _write_new(directory / "server.key", ServerKey(public=public, secret=secret))
        return None if name is None else _make_worker_key(directory, name, roles or ROLES)
    except OSError as error:
        raise ConfigError(f"The keys cannot be written to {directory}: {error}. Choose a folder.") from error


def refuse_key(directory: Path, name: str) -> None:
    """Raises: ConfigError if no worker's key of this name can be made: it is unfit, or taken."""
    if not NAME.fullmatch(name) or RESERVED.fullmatch(name):
        raise ConfigError(
            f"The key name {name!r} cannot be used; expected letters, digits, `.`, `_`, `-`, and none of the "
            "run's own names (trainer, rollout-0, local). Name it after the machine, for example `node1`."
        )
    try:
        taken = [there for there in _files_of(directory, name)[::-1] if exists(there)]
    except OSError:  # whoever writes into the folder is told
        return
    if taken:
        raise ConfigError(
            f"{taken[0]} is there already, and a key is never overwritten. Choose another name, or revoke it "
            f"first: launch.py revoke {directory} {name}"
        )


def _files_of(directory: Path, name: str) -> tuple[Path, Path]:
    """The worker's key, and the grant by which the controller admits it."""
    return directory / f"{name}.key", directory / "workers" / f"{name}.json"


def _make_worker_key(directory: Path, name: str, roles: tuple[Role, ...]) -> Path:
    """Write both files of a worker's key, or none. Raises: OSError."""
    path, grant_path = _files_of(directory, name)
    server = _load(directory / "server.key", ServerKey)
    public, secret = _pair()
    grant = Grant(name=name, roles=roles, public=public)
    _write_new(path, WorkerKey(name=name, roles=roles, public=public, secret=secret, server=server.public))
    try:
        _write_new(grant_path, grant)
    except BaseException:
        path.unlink()  # it is not admitted, and must not look as if it were
        raise
    return path


def _make_folders(directory: Path) -> None:
    """Make the folders if they are missing, and close them to others. Raises: ConfigError; OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    is_wide = directory.stat().st_mode & 0o077
    if is_wide and not exists(directory / "server.key") and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} holds other files, and others may enter it; keys want their own folder. Name a "
            f"new one, or if nobody else needs what lies there: chmod 700 {directory}"
        )
    (directory / "workers").mkdir(mode=0o700, exist_ok=True)
    for folder in (directory, directory / "workers"):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)
    if problem := _trespass(directory):
        raise ConfigError(problem)


def _trespass(directory: Path) -> str | None:
    """Why another user could admit a key here; None if nobody but the owner and root can.

    A folder with the sticky bit may be writable for all, like that of a mounted Kubernetes secret: its
    files are safe. Raises: OSError.
    """
    above, workers, key = directory.resolve().parent, directory / "workers", directory / "server.key"
    for folder, writers in ((above, 0o002), (directory, 0o022), (workers, 0o022)):
        mode = stat.S_IMODE(folder.stat().st_mode) if exists(folder) else 0
        is_safe = folder != workers and mode & stat.S_ISVTX
        if mode & writers and not is_safe:
            return (
                f"Others may write to {folder} (mode {mode:o}), and so admit a key of theirs. If nobody has "
                f"(look at {workers}): chmod go-w {folder}; else make keys anew, in another folder."
            )
    owner, own = directory.stat().st_uid, os.geteuid()
    for path, owners in ((workers, (0, own, owner)), (key, (0, own, owner))):
        if exists(path) and path.stat().st_uid not in owners:
            return (
                f"{path} belongs to another user (id {path.stat().st_uid}) than its folder, who could admit "
                "a key of theirs. Make keys anew, in another folder."
            )
    if owner not in (0, own, key.stat().st_uid if exists(key) else own):
        return (
            f"{directory} belongs to another user (id {owner}) than its keys, who could admit a key. "
            "Make keys anew, in a folder of yours."
        )
    return None


def revoke(directory: Path, name: str) -> None:
    """Revoke this key; a running controller notices it by itself. Raises: ConfigError."""
    if not (is_dir(directory / "workers") or exists(directory / "server.key")):
        what = "holds no keys" if is_dir(directory) else "is not there"
        raise ConfigError(
            f"{directory} {what}, so no key was revoked. Expected a folder of keys, as `launch.py keygen` "
            "makes it, or the directory of a run that has `controller.keys`."
        )
    grant, key = directory / "workers" / f"{name}.json", directory / f"{name}.key"
    is_one = NAME.fullmatch(name) and not RESERVED.fullmatch(name)  # server.key is none
    if not is_one or not (exists(grant) or exists(key)):
        known = sorted(file.stem for file in (directory / "workers").glob("*.json"))
        raise ConfigError(f"{directory} admits no key named {name!r}; it admits {known}.")
    grant.unlink(missing_ok=True)
    key.unlink(missing_ok=True)


def channel_key(path: Path) -> ServerKey:
    """Load or create the run's shared key of the weights channel, which workers of CHANNEL_ROLES are given.

    Anyone who holds it can read the run's weights, also after their own key was revoked. Raises:
    ConfigError if others can read the file.
    """
    if not exists(path):
        public, secret = _pair()
        _write_new(path, ServerKey(public=public, secret=secret))
    return _load(path, ServerKey)


def load_worker_key(path: str | Path) -> WorkerKey:
    """The key in a file that `keygen` made. Raises: ConfigError if it is no key, or others can read it."""
    return _load(Path(path), WorkerKey)


def secure_client(socket: Socket, key: WorkerKey) -> None:
    """Have this socket encrypt its future connections, and talk only to the server with this key."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())


def secure_server(socket: Socket, secret: str) -> None:
    """Have this socket admit, where it binds from now on, only keys that the CurveAuthenticator admits."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


class Keyring:
    """The keys that one controller admits: those of a folder, as it is now, and one for its own processes."""

    def __init__(self, directory: str | Path) -> None:
        """Raises: ConfigError if the folder holds no server key, or others can read it or admit keys."""
        self.directory = Path(directory)
        if not exists(self.directory / "server.key"):
            raise ConfigError(
                f"`controller.keys` is {directory}, which holds no server.key. Make keys first, one for each "
                f"machine: launch.py keygen {directory} --role rollout --name node1"
            )
        try:
            problem = _trespass(self.directory)
        except OSError as error:
            problem = f"It cannot be looked at: {error}."
        if problem:
            raise ConfigError(f"`controller.keys` is {directory}. {problem}")
        self.server = _load(self.directory / "server.key", ServerKey)
        public, secret = _pair()
        self.local = WorkerKey(
            name=OWN_KEY, roles=ROLES, public=public, secret=secret, server=self.server.public
        )
        """Of this life of the controller: for local workers, and whoever may read the run directory."""
        self.folder = GrantFolder(self.directory / "workers")
        """The keys of other machines."""

    def grant(self, public: str) -> Grant | None:
        """What the key with this public half may be; None if it is unknown or was revoked."""
        if public == self.local.public:
            return self.local
        self.refresh()
        return self.folder.get(public)

    def refresh(self) -> bool:
        """Look at the folder again; returns whether it may admit other keys than before."""
        return self.folder.refresh()


class CurveAuthenticator:
    """Tells libzmq, for the sockets of one context, whether a key is admitted (ZAP, ZeroMQ RFC 27).

    A connection that is admitted carries its public key as the `User-Id` of every frame.
    """

    def __init__(
        self,
        context: zmq.Context[Any],  # of plain sockets or asyncio's
        *,
        admits: Callable[[str], bool],
        on_refusal: Callable[[str], None],
    ) -> None:
        """Open; do so before the secured socket is bound, or no connection is admitted."""
        self._admits, self._on_refusal = admits, on_refusal
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Answer in the running loop; connections wait until then."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.answer_all)
        self._loop.call_soon(self.answer_all)

    def close(self) -> None:
        """Close; no connection is admitted any more."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close(0)

    @property
    def socket(self) -> Socket:
        """The socket, for an owner without a loop, who calls `answer_all` when it can be read."""
        return self._socket

    def answer_all(self) -> None:
        """Answer all connections that wait."""
        while not self._socket.closed:
            try:
                request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._socket.send_multipart(self._answer(request))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        user = b""
        try:
            version, identifier, domain, address, _, mechanism, key = request
            if (version, domain, mechanism) == (b"1.0", DOMAIN, b"CURVE") and len(key) == 32:
                user = z85.encode(key)
                if not self._admits(user.decode()):
                    user = b""
                    self._on_refusal(f"an unknown or revoked key, from {address.decode(errors='replace')}.")
        except Exception as error:  # one that escaped would end authentication for the life of the process
            user = b""
            identifier = request[1] if len(request) > 1 else b""
            self._on_refusal(f"a key that could not be checked: {type(error).__name__}: {error}")
        status, text = (b"200", b"OK") if user else (b"400", b"refused")
        return [b"1.0", identifier, status, text, user, b""]


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _write_new(path: Path, content: Section) -> None:
    """Write a file that must not exist yet, complete and for its owner only."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content.model_dump_json(indent=1) + "\n")
        os.link(aside, path)  # unlike a rename, it overwrites nothing
    finally:
        aside.unlink()


def write_local_key(path: Path, key: WorkerKey) -> None:
    """Write the run's own key where local workers find it, in place of the last controller's."""
    path.unlink(missing_ok=True)
    _write_new(path, key)


def _load(path: Path, kind: type[FileKind]) -> FileKind:
    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise ConfigError(
                f"{path} can be read by others (mode {mode & 0o777:o}), so it is no secret. Make a new key, "
                f"or if nobody has read it: chmod 600 {path}"
            )
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    except ValidationError:  # its text would show the secret
        raise ConfigError(
            f"{path} is not a {'worker' if kind is WorkerKey else 'server'} key of this release. Make one "
            "with: launch.py keygen DIR --role rollout --name NAME"
        ) from None
