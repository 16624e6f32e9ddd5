"""The quick look at a report of progress says yes only to what the whole look would let pass."""

import random
from dataclasses import replace

from controller.core.decisions.workers.plausibility import Plausibility
from controller.core.state.progress.columns import Columns
from controller.core.state.told import ToldInstance
from protocol.messages import Generated
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest

COLUMNS = ("groups", "members", "attempts", "starts", "counts", "policy_versions", "endings")


def busy_run(path) -> ScriptedRun:
    config, disk = config_of(steps=4, is_local=True), Disk()
    run = ScriptedRun(path, config, honest(config, disk))
    run.run(until=lambda: sum(len(i.running) for i in run.core.state.registry.instances()) >= 2)
    return run


def changed(message: Generated, rng: random.Random) -> Generated:
    """With one value replaced, or one delta twice."""
    if rng.random() < 0.2:
        return Generated.of((*message.deltas, rng.choice(message.deltas)))
    name = rng.choice(COLUMNS)
    column = list(getattr(message, name))
    place = rng.randrange(len(column))
    value = column[place]
    column[place] = (
        rng.choice(["", "stop", "interrupt"])
        if name == "endings"
        else max(0, value + rng.choice([-1, 1, 7, 1000]))
    )
    return replace(message, **{name: tuple(column)})


def test_what_passes_the_quick_look_passes_the_other_and_most_progress_does(tmp_path, monkeypatch):
    run, rng, quick = busy_run(tmp_path / "run.db"), random.Random(0), 0
    door = run.core.plausibility
    instance = next(i for i in run.core.state.registry.instances() if i.running)
    told = instance.told
    assert isinstance(told, ToldInstance)
    versions = (instance.policy_version, instance.pulling)
    rows = [(*key, given.reported, 1, instance.next_version, "") for key, given in told.given.items()]
    honest_word = Generated(*zip(*rows, strict=True))
    assert told.is_steady(honest_word, versions)
    for _ in range(2_000):
        message = honest_word
        for _ in range(rng.randrange(3)):
            message = changed(message, rng)
        is_steady = told.is_steady(message, versions)
        with monkeypatch.context() as patched:
            patched.setattr(ToldInstance, "is_steady", lambda *_: False)
            patched.setattr(Columns, "lead", lambda *_: None)
            objection = Plausibility(door.state).objection(instance, message)
        assert objection is None or not is_steady, f"{message}: {objection}"
        assert door.objection(instance, message) == objection, message
        quick += is_steady
    assert quick > 300
