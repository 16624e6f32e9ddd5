"""A simulated run whose journal is written as a shell writes that of a real one: with names of real hosts,
and with snapshots."""

import json
from pathlib import Path

from controller.config.models import Config
from controller.durability.fingerprint import fingerprint
from controller.durability.release import release
from controller.durability.snapshots import Snapshots
from controller.durability.store import Store
from controller.simulation import Outcome, Simulation


class OnHosts(Simulation):
    """Its workers say that they run on "vm", or on the host that `hosts` has for their name."""

    def __init__(self, config: Config, *, hosts: dict[str, str], seed: int) -> None:
        super().__init__(config, seed=seed)
        self._hosts = hosts

    def host_of(self, name: str) -> str:
        return self._hosts.get(name, "vm")


def record(
    path: Path, config: Config, *, hosts: dict[str, str] | None = None, snapshot_every: int = 0, seed: int = 1
) -> Outcome:
    """Simulate the run to its end; `path` becomes its directory."""
    path.mkdir(exist_ok=True)
    store = Store(path / "run.db")
    facts = {
        "config": config.model_dump_json(),
        "run_dir": "",
        "import_paths": "[]",
        "release": json.dumps(release()),
    }
    with store.transaction():
        for name, value in facts.items():
            store.put_fact(name, value)
    simulation = OnHosts(config, hosts=hosts or {}, seed=seed)
    snapshots = Snapshots(store, is_compact=False)
    step = simulation.core.step

    def journaled(now, event):
        commands = step(now, event)
        with store.transaction():
            number = store.append_events(now, [(event, False)])
            store.put_fingerprints(number, fingerprint(commands))
            if snapshot_every and number % snapshot_every == 0:
                snapshots.take(simulation.core, number=number, now=now)
        return commands

    simulation.decide = journaled
    outcome = simulation.run()
    store.close()
    return outcome
