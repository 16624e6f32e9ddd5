"""The address at which a worker hands policy versions to other hosts.

Invariants: an address that a person configured for this host takes precedence; only an address of this host
is announced, so that binding it works; without a key only this machine can reach the worker, whatever was
configured.

Configured is one address, or a network (`10.0.0.0/16`) of which every host takes its own address. The value
comes from the environment (STALEFLOW_ADDRESS) or from `weights.host`, which a worker that was attached by
hand may override. A host without such an address looks at its routes.
"""

import ipaddress
import os
import socket
from typing import NamedTuple

from protocol.errors import ConfigError
from protocol.settings import network_of
from protocol.wire.endpoints import is_loopback

VARIABLE = "STALEFLOW_ADDRESS"
LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"  # reserved, no host has it; its route is the default one


class Announced(NamedTuple):
    """An address of this host, and the reason for it."""

    host: str
    why: str

    @property
    def endpoint(self) -> str:
        """The endpoint to bind, with any free port."""
        return f"tcp://[{self.host}]:*" if ":" in self.host else f"tcp://{self.host}:*"


def address_to_announce(endpoint: str, *, is_private: bool, wanted: str = "", bound: str = "") -> Announced:
    """The address at which other hosts reach this one.

    `endpoint`: of the controller, as this worker reaches it; `is_private`: whether the channel has a key;
    `wanted`: `weights.host`; `bound`: the address of `controller.bind`, which is this host's if the
    controller runs here. Raises: ConfigError if STALEFLOW_ADDRESS names no address of this host.
    """
    if not is_private:
        return Announced(LOOPBACK, "without controller.keys, only this machine may have the weights")
    if said := os.environ.get(VARIABLE):
        return Announced(require_own(said, source=VARIABLE), f"as {VARIABLE} says")
    if wanted and (own := _own(wanted)):
        return Announced(own, "as weights.host says")
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]") if "tcp://" in endpoint else ""
    if host and not is_loopback(host):
        if own := _source_towards(host):
            return Announced(own, "from which this host reaches the controller")
    elif bound and _is_own(bound):
        return Announced(bound, "at which the controller listens")
    if own := _source_towards(ELSEWHERE):
        return Announced(own, "from which this host reaches others by default")
    return Announced(LOOPBACK, "for want of any other: this host has no default route")


def require_own(said: str, *, source: str) -> str:
    """The configured address of this host. Raises: ConfigError if the host does not have it."""
    if own := _own(said):
        return own
    raise ConfigError(
        f"{source} is {said!r}, which is no address of this host, nor a network that it is in. Expected one "
        "such as 10.0.0.7 or 10.0.0.0/16: `ip address` shows what this host has."
    )


def _own(said: str) -> str | None:
    """This host's address in a network, or the address itself; None if the host has none."""
    network = network_of(said)
    if network is None:
        return None
    if network.num_addresses == 1:
        found = str(network.network_address)
        return found if _is_own(found) else None
    found = _source_towards(str(network.network_address + 1))
    return found if found and ipaddress.ip_address(found) in network else None


def _source_towards(host: str) -> str | None:
    """The address from which this host talks to another; None without a route to it."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
