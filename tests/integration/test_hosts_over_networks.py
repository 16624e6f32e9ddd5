"""Five hosts on one machine, each with a network of its own: runs over cables that delay, lose and break.

Nothing is lost and nothing is trained twice, whatever the network does.
"""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_killed_runs import check_whole
from test_whole_runs import config

from controller.config.models import Config, ControllerSettings, WeightsSettings
from controller.core.commands import Send
from controller.durability.recording import Recording
from controller.durability.replay import turns
from protocol.messages import Pull
from protocol.wire.security import make_keys
from tests.support.hosts import HUB, Network, end, network, why_not

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
STEP = re.compile(r"step +(\d+)/")  # in a line of the console
WORKERS = {"training": "trainer", "rolls-a": "rollout", "rolls-b": "rollout", "rewards": "reward"}
DEEP = {
    "training": "trainer", "rolls-a": "rollout", "rolls-b": "rollout", "rolls-c": "rollout",
    "rewards": "reward",
}  # fmt: skip
pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Hosts:
    """A run whose controller is on the hub, and whose workers are each on a host of their own."""

    def __init__(
        self, folder: Path, made: Network, *, steps: int, roles: Mapping[str, str] = WORKERS,
        fan_out: int = 2, max_staleness: int = 2,
    ) -> None:  # fmt: skip
        self.made, self.folder, self.run, self.roles = made, folder, folder / "run", roles
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        keys = folder / "keys"
        self.keys = {name: make_keys(keys, name, (role,)) for name, role in roles.items()}
        settings = ControllerSettings.model_validate(
            {"bind": "tcp://0.0.0.0:29500", "keys": str(keys), "reattach_s": 300.0}
        )
        self.config: Config = config(
            folder, run={"steps": steps}, trainer={"local": False, "checkpoint_steps": 4, "lr": 0.01},
            rollout={"instances": 0, "progress_s": 0.3, "max_prompt_tokens": 40},
            reward={"workers": 0, "timeout_s": 60.0}, logging={"console": "plain"},
            staleness={"max_staleness": max_staleness, "mu": 0.0},
        )  # fmt: skip
        changes = {"controller": settings, "weights": WeightsSettings(fan_out=fan_out)}
        self.config = self.config.model_copy(update=changes)
        self.file = folder / "run.json"
        self.file.write_text(self.config.model_dump_json())
        self.controller: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start the controller."""
        command = [sys.executable, "launch.py", str(self.file)]
        self.controller = subprocess.Popen(
            self.made.inside(HUB, *command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def attach(self, name: str) -> None:
        """Start the worker of a host."""
        number = list(self.roles).index(name) + 1
        words = [
            "attach",
            f"tcp://10.77.{number}.1:29500",
            "--role",
            self.roles[name],
            "--key",
            str(self.keys[name]),
        ]
        if name == "training":
            words.append(f"model.path={self.run / 'model'}")
        command = [sys.executable, str(ROOT / "launch.py"), *words]
        self.workers[name] = self.made.start(
            name, command, self.folder / f"{name}.log", STALEFLOW_ADDRESS=self.made.address(name),
            XDG_CACHE_HOME=str(self.folder / name),
        )  # fmt: skip

    def vanish(self, name: str) -> None:
        """Take the host away, with whatever runs there."""
        self.made.cut(name)
        worker = self.workers.pop(name)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def kill_controller(self) -> None:
        """As a power cut would end it."""
        assert self.controller is not None
        subprocess.run(["pkill", "-KILL", "-P", str(self.controller.pid)], check=False)
        end(self.controller)

    def end(self) -> None:
        """Leave nothing behind."""
        for process in [*self.workers.values(), *filter(None, [self.controller])]:
            end(process)


def follow(hosts: Hosts, plan: Mapping[int, Callable[[], None]]) -> str:
    """Do what is planned after each step; what the controllers said, until one ends by itself."""
    said, done = "", set[int]()
    guard = threading.Timer(LIMIT_S, hosts.end)
    guard.start()
    try:
        while True:
            assert hosts.controller is not None
            assert hosts.controller.stdout is not None
            line = hosts.controller.stdout.readline()
            said += line
            if not line and hosts.controller.wait() is not None:
                assert done == plan.keys(), said[-3000:]
                return said
            found = STEP.search(line)
            step = int(found[1]) if found else None
            if step in plan and step not in done:
                done.add(step)
                plan[step]()
    finally:
        guard.cancel()


def healed(hosts: Hosts, name: str, seconds: float) -> None:
    """Heal a cable in so many seconds."""
    threading.Timer(seconds, hosts.made.heal, [name]).start()


Plan = Mapping[int, Callable[[], None]]
"""What to do after a step."""


def run(
    folder: Path, steps: int, plan: Callable[[Hosts], Plan], *, roles: Mapping[str, str] = WORKERS,
    fan_out: int = 2, max_staleness: int = 2, delay_s: float = 0.025,
) -> dict[str, Any]:  # fmt: skip
    """A whole run over the controller's host and one for each worker; its summary."""
    with network(*roles) as made:
        hosts = Hosts(folder, made, steps=steps, roles=roles, fan_out=fan_out, max_staleness=max_staleness)
        for name in roles:
            made.to_host[name].delay_s = made.to_hub[name].delay_s = delay_s
        try:
            hosts.begin()
            for name in roles:
                hosts.attach(name)
            said = follow(hosts, plan(hosts))
            assert hosts.controller is not None
            assert hosts.controller.returncode == 0, said[-3000:]
        finally:
            hosts.end()
    check_whole(folder / "run", steps=steps)
    return json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.thorough
def test_a_run_over_five_hosts_without_a_default_route_is_whole(tmp_path):
    run(tmp_path, 6, lambda hosts: {})


@pytest.mark.thorough
def test_partitions_of_8_and_40_seconds_lose_nothing(tmp_path):
    def plan(hosts: Hosts) -> Plan:
        def cut(name: str, seconds: float) -> Callable[[], None]:
            def act() -> None:
                hosts.made.cut(name)
                healed(hosts, name, seconds)

            return act

        return {
            2: cut("rolls-a", 40.0),
            4: cut("rolls-b", 8.0),
            6: cut("rewards", 8.0),
            8: cut("training", 8.0),
        }

    run(tmp_path, 40, plan)


@pytest.mark.thorough
def test_a_host_that_vanishes_and_comes_back_and_one_way_loss_lose_nothing(tmp_path):
    def plan(hosts: Hosts) -> Plan:
        def lose() -> None:
            hosts.made.to_host["rolls-a"].loss = 0.2
            hosts.made.to_hub["rolls-a"].loss = 0.02

        def back() -> None:
            hosts.made.heal("rolls-b")
            hosts.attach("rolls-b")

        return {2: lose, 4: lambda: hosts.vanish("rolls-b"), 8: back}

    run(tmp_path, 40, plan)


@pytest.mark.thorough
def test_a_controller_that_is_killed_finds_its_hosts_again(tmp_path):
    def plan(hosts: Hosts) -> Plan:
        def kill() -> None:
            hosts.kill_controller()
            hosts.begin()

        return {3: kill, 7: kill}

    run(tmp_path, 10, plan)


@pytest.mark.thorough
def test_behind_relays_three_deep_a_run_is_whole_though_the_middle_one_vanishes(tmp_path):
    def plan(hosts: Hosts) -> Plan:
        def back() -> None:
            hosts.made.heal("rolls-b")
            hosts.attach("rolls-b")

        return {8: lambda: hosts.vanish("rolls-b"), 11: back}

    # at staleness 0 all hosts need each version at once, so that they stand in one line
    summary = run(tmp_path, 24, plan, roles=DEEP, fan_out=1, max_staleness=0)
    assert "weights/chunks_refused" not in summary["counts"]
    with Recording(tmp_path / "run") as recording:
        steps = list(turns(recording, recording.make_core()))
    sent = [command for turn in steps for command in turn.commands if isinstance(command, Send)]
    depths = [len(pull.sources) for pull in (command.message for command in sent) if isinstance(pull, Pull)]
    assert set(depths) == {1, 2, 3}
