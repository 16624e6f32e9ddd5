"""Where a controller may bind, and how its address is found.

Invariants: nothing that other hosts can reach is bound without keys; no Unix socket is bound that has no
file, whose folder says who may reach it; no live controller's socket is taken over, and nothing but a socket
is removed.
"""

import asyncio
import errno
import ipaddress
import json
import os
import socket
import stat
from pathlib import Path

from protocol.errors import ConfigError, NoAnswer
from protocol.files import exists, is_dir
from protocol.plain_text import sentence

UNIX_PATH_BYTES = 107
WITHOUT_KEYS = (
    "which other hosts can reach; without keys anybody could attach. Make keys and name their folder in "
    "`controller.keys`: launch.py keygen keys --role rollout --name node1; then controller.keys=keys. Or "
    "bind tcp://127.0.0.1:PORT or ipc://PATH."
)


def check_endpoint(endpoint: str, *, has_keys: bool = False) -> None:
    """Refuse what must not be bound, and clear away what a dead controller left.

    Raises: ConfigError if the endpoint is malformed, reachable from other hosts, or taken.
    """
    scheme, separator, place = endpoint.partition("://")
    if separator and place and scheme == "ipc":
        if place.startswith("@"):
            raise ConfigError(
                f"`controller.bind` is {endpoint}, a socket without a file: every user of this machine could "
                "attach to it. Expected a path whose folder is yours: ipc://PATH, or `auto`."
            )
        _take_unix_path(Path(place))
    elif separator and place and scheme == "tcp":
        host = place.rpartition(":")[0]
        if not has_keys and not is_loopback(host):
            raise ConfigError(f"`controller.bind` is {endpoint}, {WITHOUT_KEYS}")
    else:
        raise ConfigError(
            f"`controller.bind` is {endpoint!r}; expected `ipc://PATH` or `tcp://127.0.0.1:PORT`."
        )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach what is bound to `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def local_form(endpoint: str) -> str:
    """The address by which a process on this machine reaches what is bound at `endpoint`."""
    return endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


async def has_ipv6_alone(endpoint: str) -> bool:
    """Whether all addresses of the endpoint's host are IPv6: libzmq looks for one of a single kind."""
    scheme, _, place = endpoint.partition("://")
    host = place.rpartition(":")[0]
    if scheme != "tcp" or host.startswith("["):
        return scheme == "tcp"
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):  # UnicodeError: no name of a host; libzmq goes on looking
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)


async def unknown_host(endpoint: str) -> str:
    """One sentence if this machine cannot look up the endpoint's host; "" if it can, or there is none."""
    scheme, _, place = endpoint.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    if scheme != "tcp":
        return ""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid host name"
        return f"This machine finds no address for the host {host}: {why}."
    return ""


def find_endpoint(address: str) -> tuple[str, Path | None]:
    """The endpoint itself, or the one that a run directory names; then also the key file in it, if any.

    Raises: NoAnswer; ConfigError if the endpoint has a port that does not exist.
    """
    if "://" in address:
        port = address.rpartition(":")[2]
        if port.isdecimal() and not 0 < int(port) < 65_536:  # libzmq would look for it for ever
            raise ConfigError(f"{address!r} has the port {port}; expected one from 1 to 65535.")
        return address, None
    file, key = Path(address) / "address", Path(address) / "local.key"
    try:
        return file.read_text().strip(), key if exists(key) else None
    except OSError as error:
        if (reason := _how_it_ended(Path(address))) is not None:
            raise NoAnswer(
                f"The run in {address} is over: {reason} Nobody can join or leave it any more. Give the "
                "directory of a run that is alive."
            ) from None
        what = "does not exist" if error.errno == errno.ENOENT else f"cannot be read: {error}"
        raise NoAnswer(
            f"{address!r} is neither an endpoint nor a run directory: {file} {what}. Give an address such as "
            "tcp://127.0.0.1:29500, or the directory of a run that is alive."
        ) from None


def _how_it_ended(run: Path) -> str | None:
    """The reason in the summary of a run that is over; None if there is none."""
    try:
        reason = str(json.loads((run / "summary.json").read_text())["reason"]).splitlines()[0]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return sentence(reason)


def check_unix_path(path: Path) -> None:
    """Raises: ConfigError if no socket fits at this path; nothing is changed."""
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise ConfigError(
            f"The socket path {path} has {len(os.fsencode(path))} bytes; the system allows "
            f"{UNIX_PATH_BYTES}. Choose a shorter run directory, or bind tcp://127.0.0.1:PORT."
        )
    if not is_dir(path.parent):
        raise ConfigError(f"The folder of the socket {path} does not exist. Make it, or choose another.")
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be looked at: {error.strerror}. Bind elsewhere.") from None
    if not is_socket:  # it would look like a dead one
        raise ConfigError(f"{path} exists and is no socket. Remove it, or bind elsewhere.")


def _take_unix_path(path: Path) -> None:
    check_unix_path(path)
    if not exists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()  # left by a controller that was killed; libzmq would take over a live one's as well
            return
        except OSError as error:
            raise ConfigError(
                f"{path} is in the way of the socket: {error}. Remove it or bind elsewhere."
            ) from None
    raise ConfigError(
        f"Another live process listens at {path}. Stop it first, or choose another run directory."
    )
