"""A worker's link over real sockets: what it carries, and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_transport import ATTACH, LIMIT_S, Ends
from test_transport import ends as ends

from protocol.errors import ConfigError
from protocol.messages import (
    Close,
    Ready,
    Retire,
    Welcome,
)
from tests.support.hosts import why_not
from workers.link.link import Link, LinkClosed

ROOT = Path(__file__).resolve().parents[2]


async def test_a_link_to_nobody_ends_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No controller answered"):
        await Link.attach(f"ipc://{tmp_path}/nobody", ATTACH, limit_s=0.05)
    with pytest.raises(ConfigError, match="neither an endpoint nor a run directory"):
        await Link.attach(str(tmp_path), ATTACH)
    (tmp_path / "address").write_text(f"ipc://{tmp_path}/nobody\n")
    with pytest.raises(ConfigError, match="No controller answered"):
        await Link.attach(str(tmp_path), ATTACH, limit_s=0.05)


async def test_a_host_that_nobody_knows_is_said_to_be_that() -> None:
    with pytest.raises(ConfigError, match=r"finds no address for the host no-host\.invalid: "):
        await Link.attach("tcp://no-host.invalid:29500", ATTACH, limit_s=0.05)
    with pytest.raises(ConfigError, match=r"Is the run alive\?"):
        await Link.attach("tcp://127.0.0.1:1", ATTACH, limit_s=0.05)


LOOK_UP = """
import asyncio, sys
from protocol.messages import Attach, Close
from protocol.wire.server import Server
from workers.link.link import Link, LinkClosed

async def main(bound, name):
    server = Server(bound, on_message=lambda peer, *_: server.send(peer, Close("Found.", False)),
                    on_fault=lambda *_: None)
    server.start()
    address = f"tcp://{name}:{server.endpoint.rpartition(':')[2]}"
    try:
        await Link.attach(address, Attach("rollout", "r0", 1, "here"), limit_s=5.0)
    except LinkClosed as closed:
        print(closed)
    finally:
        server.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    ("bound", "name"),
    [("tcp://[::1]:*", "six"), ("tcp://127.0.0.1:*", "four"), ("tcp://127.0.0.1:*", "both")],
)
def test_a_host_is_found_by_its_name_whichever_addresses_it_has(tmp_path, bound: str, name: str) -> None:
    (tmp_path / "hosts").write_text("::1 six both\n127.0.0.1 four both\n")
    inside = 'ip link set lo up && mount --bind "$1" /etc/hosts && shift && exec "$@"'
    words = ["sh", "-c", inside, "sh", str(tmp_path / "hosts"), sys.executable, "-c", LOOK_UP, bound, name]
    found = subprocess.run(
        ["unshare", "--net", "--mount", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout == "Found.\n", found.stderr


@pytest.mark.parametrize(("is_fault", "raised"), [(True, ConfigError), (False, LinkClosed)])
async def test_a_link_that_is_refused_says_why(ends: Ends, is_fault: bool, raised: type[Exception]) -> None:
    ends.on_message = lambda peer, message: ends.server.send(peer, Close("The name is taken.", is_fault))
    with pytest.raises(raised, match="The name is taken"):
        await Link.attach(ends.server.endpoint, ATTACH)
    assert await ends.server.flush(LIMIT_S)  # the refusal was acknowledged: the server need not wait to end


SETTINGS = (
    '{"run_dir":"r","seed":0,"steps":1,"model":{},"rollout":{},"reward":{},"trainer":{},"import_paths":["a"]}'
)


async def test_a_link_carries_settings_messages_and_the_end(ends: Ends) -> None:
    ends.on_message = lambda peer, message: (
        ends.server.send(peer, Welcome(0.05, 600.0, SETTINGS)) if message == ATTACH else None
    )
    link = await Link.attach(ends.server.endpoint, ATTACH)
    assert link.settings.import_paths == ("a",)
    assert link.receive_nowait() is None
    peer = ends.heard[0][0]
    ends.server.send(peer, Retire(1))
    assert await link.receive() == (Retire(1), ())
    link.send(Ready(1, 0, 0))
    assert await link.flush(LIMIT_S)
    ends.server.send(peer, Retire(2))
    ends.server.send(peer, Close("The run is over.", False))
    assert await ends.server.flush(LIMIT_S)  # by the acknowledgement that Close itself evokes
    assert await link.receive() == (Retire(2), ())  # what came before the end is not lost
    with pytest.raises(LinkClosed, match="The run is over") as closed:
        await link.receive()
    assert not closed.value.is_fault
    await link.aclose()


async def test_a_silent_controller_ends_the_link(ends: Ends) -> None:
    ends.on_message = lambda peer, message: ends.server.send(peer, Welcome(0.02, 0.1, SETTINGS))
    link = await Link.attach(ends.server.endpoint, ATTACH)
    ends.server.close()
    with pytest.raises(LinkClosed, match="silent for") as closed:
        await link.receive()
    assert closed.value.is_fault
    await link.aclose()
