"""Progress in columns changes nothing that anybody sees."""

import random

from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.core.events import Received
from controller.core.state.progress.columns import Columns
from controller.core.state.told import ToldInstance
from controller.durability.core_image import Freezer, thaw
from protocol.messages import Delta, Generated
from tests.unit.controller.core.state.test_steady_reports import busy_run, changed


def word(core: Core, peer: str, rng: random.Random) -> Generated:
    """What this instance may say next, mostly of all that it has."""
    told = core.state.registry.workers[peer].told
    assert isinstance(told, ToldInstance)
    version = core.state.registry.workers[peer].next_version
    deltas = []
    for key, given in told.given.items():
        most = 2 if given.most and given.reported + 2 <= given.most else 1
        ending = rng.choice(["stop", "interrupt"]) if rng.random() < 0.03 else ""
        deltas.append(Delta(*key, given.reported, rng.randint(1, most), version, ending))
    if rng.random() < 0.2:
        del deltas[rng.randrange(len(deltas))]
    if rng.random() < 0.1:
        rng.shuffle(deltas)
    message = Generated.of(deltas)
    return changed(message, rng) if deltas and rng.random() < 0.03 else message


def known(core: Core) -> list[object]:
    """All that the core knows of progress."""
    members = [member for group in core.state.groups.values() for member in group.members]
    registry = core.state.registry
    return [
        [(m.id, m.state, m.reported, m.response_tokens, tuple(m.segments), m.since) for m in members],
        [(m.expected_tokens, m.next_prediction_at, m.is_urgent) for m in members],
        [(i.peer, i.resident_tokens, i.expected_tokens, i.urgent, i.running) for i in registry.instances()],
        [{key: given.reported for key, given in i.told.given.items()} for i in registry.instances()],
        core.state.accounts.tokens(),
    ]


def test_a_core_with_columns_and_one_without_say_and_know_the_same(tmp_path, monkeypatch):
    run, in_columns = busy_run(tmp_path / "run.db"), 0
    image, strategies = Freezer().freeze(run.core), load_strategies(run.core.state.config)
    for seed in range(12):
        rng, now = random.Random(seed), run.core.state.now
        core, plain = thaw(image, strategies), thaw(image, strategies)
        for instance in plain.state.registry.instances():
            instance.told.columns.clear()
        for _ in range(40):
            able = [i.peer for i in core.state.registry.instances() if i.running and i.told.given]
            if not able:
                break
            now += rng.random() / 10
            peer = rng.choice(able)
            event = Received(peer, word(core, peer, rng))
            commands = core.step(now, event)
            with monkeypatch.context() as patched:
                patched.setattr(Columns, "add", lambda *_: None)
                assert plain.step(now, event) == commands
            for one in core.state.registry.instances():
                in_columns += len(one.told.columns.given)
            if rng.random() < 0.3:
                assert known(core) == known(plain)
                core.check()
        assert known(core) == known(plain)
    assert in_columns > 500


def test_an_image_does_not_show_who_has_looked(tmp_path):
    run, rng = busy_run(tmp_path / "run.db"), random.Random(0)
    strategies = load_strategies(run.core.state.config)
    image = Freezer().freeze(run.core)
    looked, other = thaw(image, strategies), thaw(image, strategies)
    for _ in range(10):
        able = [i.peer for i in other.state.registry.instances() if i.running and i.told.given]
        peer = rng.choice(able)
        event = Received(peer, word(other, peer, rng))
        now = other.state.now + 0.1
        assert other.step(now, event) == looked.step(now, event)
        known(looked)
    assert Freezer().freeze(looked) == Freezer().freeze(other)
