"""Where a host's versions are announced: what a person said, else what the run knows, else the routes."""

import logging
import shutil
import socket
import subprocess
import sys

import pytest

from controller.config.models import Config
from controller.core.worker_settings import worker_settings
from protocol.errors import ConfigError
from workers.host.overrides import Overrides
from workers.weights.address import VARIABLE, Announced, address_to_announce
from workers.weights.exchange_process import _say

LOCAL = "ipc:///run/controller"


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but loopback")
        return probe.getsockname()[0]


@pytest.mark.parametrize(
    ("wanted", "bound", "host", "why"),
    [
        ("127.0.0.3", "127.0.0.2", "127.0.0.3", "weights.host"),
        ("127.0.0.0/8", "127.0.0.2", "127.0.0.1", "weights.host"),
        ("198.51.100.7", "127.0.0.2", "127.0.0.2", "at which the controller listens"),  # another host's
        ("", "127.0.0.2", "127.0.0.2", "at which the controller listens"),
    ],
)
def test_what_is_said_comes_first_then_the_address_of_the_controller(wanted, bound, host, why):
    found = address_to_announce(LOCAL, is_private=True, wanted=wanted, bound=bound)
    assert found.host == host
    assert why in found.why


def test_without_anything_said_the_way_out_is_taken_and_for_a_remote_worker_that_to_its_controller():
    mine = own_address()
    assert address_to_announce(LOCAL, is_private=True).host == mine
    found = address_to_announce(f"tcp://{mine}:29500", is_private=True, bound="127.0.0.2")
    assert found == Announced(mine, "from which this host reaches the controller")


def test_the_environment_comes_before_all_and_must_be_this_hosts(monkeypatch):
    monkeypatch.setenv(VARIABLE, "127.0.0.5")
    assert address_to_announce(LOCAL, is_private=True, wanted="127.0.0.3").host == "127.0.0.5"
    assert address_to_announce(LOCAL, is_private=False).host == "127.0.0.1"  # nobody else may have them
    for wrong in ("198.51.100.7", "198.51.100.0/24", "node7", "0.0.0.0", "::", "224.0.0.1"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ConfigError, match=f"{VARIABLE} is '{wrong}', which is no address of this host"):
            address_to_announce(LOCAL, is_private=True)


def test_a_worker_may_have_its_own():
    settings = worker_settings(Config(), "run", ())
    assert Overrides("trainer", ["weights.host=127.0.0.4"])(settings).weights.host == "127.0.0.4"
    with pytest.raises(ConfigError, match=r"weights\.host is '198\.51\.100\.7', which is no address"):
        Overrides("rollout", ["weights.host=198.51.100.7"])
    with pytest.raises(ConfigError, match=r"weights\.host is '0\.0\.0\.0', which is no address"):
        Overrides("rollout", ["weights.host=0.0.0.0"])
    with pytest.raises(ConfigError, match="not something that a reward worker can have"):
        Overrides("reward", ["weights.host=127.0.0.4"])


@pytest.mark.parametrize(
    ("bind", "host"),
    [
        ("tcp://10.77.1.1:29500", "10.77.1.1"), ("tcp://[fd00::1]:29500", "fd00::1"),
        ("tcp://0.0.0.0:29500", ""), ("tcp://[::]:29500", ""), ("tcp://127.0.0.1:29500", ""),
        ("tcp://eth0:29500", ""), ("auto", ""), ("ipc:///run/x", ""),
    ],
)  # fmt: skip
def test_workers_are_told_the_address_at_which_the_controller_listens_if_it_is_one(bind, host):
    settings = Config.model_validate({"controller": {"bind": bind}})
    assert worker_settings(settings, "run", ()).bind_host == host


def test_what_is_announced_is_logged_and_a_loopback_warned_of(caplog):
    with caplog.at_level(logging.INFO):
        _say("tcp://10.0.0.7:4242", Announced("10.0.0.7", "as weights.host says"))
        _say("tcp://127.0.0.1:4242", Announced("127.0.0.1", "for want of any other"))
    said, warned = caplog.records
    assert said.getMessage() == "Policy versions are handed on at tcp://10.0.0.7:4242, as weights.host says."
    assert warned.levelname == "WARNING"
    assert "workers on other hosts cannot get them there" in warned.getMessage()


WITHOUT_ROUTE = """
import subprocess, sys
from workers.weights.address import address_to_announce
def found(**said):
    return address_to_announce("ipc:///run/controller", is_private=True, **said).host
for words in ("link set lo up", "link add d0 type veth peer name d1", "addr add 10.77.1.1/24 dev d0",
              "link set d0 up", "link set d1 up"):
    subprocess.run(["ip", *words.split()], check=True)
print(found(), found(bound="10.77.1.1"), found(wanted="10.77.1.0/24"), found(wanted="10.77.1.1"))
"""


def test_in_a_cluster_without_a_default_route_the_controllers_address_is_announced():
    words = ["unshare", "-n", sys.executable, "-c", WITHOUT_ROUTE]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip, to make a network of its own")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode and any(words in done.stderr for words in ("not permitted", "Unknown device type")):
        pytest.skip("may not make a network of its own here")
    assert done.stdout.split() == ["127.0.0.1", "10.77.1.1", "10.77.1.1", "10.77.1.1"], done.stderr
