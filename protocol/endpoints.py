"""Where a controller may bind.

Invariants: nothing that other hosts can reach is bound without keys; no live controller's socket is taken
over.
"""

import ipaddress
import os
import socket
from pathlib import Path

from protocol.errors import ConfigError

UNIX_PATH_BYTES = 107


def check_endpoint(endpoint: str) -> None:
    """Refuse what must not be bound, and clear away what a dead controller left.

    Raises: ConfigError if the endpoint is malformed, reachable from other hosts, or taken.
    """
    scheme, separator, place = endpoint.partition("://")
    if separator and place and scheme == "ipc":
        _check_unix_path(Path(place))
    elif separator and place and scheme == "tcp":
        host = place.rpartition(":")[0].strip("[]")
        if not _is_loopback(host):
            raise ConfigError(
                f"`controller.bind` is {endpoint}, which other hosts can reach; without keys anybody could "
                "attach. Bind tcp://127.0.0.1:PORT or ipc://PATH; from elsewhere, reach it through an "
                "ssh tunnel."
            )
    else:
        raise ConfigError(
            f"`controller.bind` is {endpoint!r}; expected `ipc://PATH` or `tcp://127.0.0.1:PORT`."
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_unix_path(path: Path) -> None:
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise ConfigError(
            f"The socket path {path} has {len(os.fsencode(path))} bytes; the system allows "
            f"{UNIX_PATH_BYTES}. Choose a shorter run directory, or bind tcp://127.0.0.1:PORT."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"The folder of the socket {path} does not exist. Make it, or choose another.")
    if not path.exists():
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
