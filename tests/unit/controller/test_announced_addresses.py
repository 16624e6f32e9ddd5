"""Where workers hand versions on: seen in the status, and warned of where others cannot reach it."""

import pytest

from controller.config.load import change_config
from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Send, Warn
from controller.core.core import Core
from controller.core.events import Received, Started
from controller.host.resume import read_past
from protocol.messages import Attach, PolicyPublished, Ready, Serve, Serving
from tests.unit.controller.host.test_resume import half


def announced(endpoint, *, keys="keys", host="node1"):
    """The warnings, and what the status says, when a trainer on node0 serves there."""
    config = Config.model_validate({"controller": {"keys": keys}})
    core, warned = Core(config, load_strategies(config)), []
    events = [Started()]
    for peer, role, where in (("t", "trainer", "node0"), ("r", "rollout", host)):
        room = (4, 1000) if role == "rollout" else (0, 0)
        events += [Received(peer, Attach(role, role, 1, where)), Received(peer, Ready(0, *room))]
    events.append(Received("t", PolicyPublished(0, "v0", "digest", 1, 0.1)))
    for number, event in enumerate(events):
        commands = core.step(0.01 * number, event)
        warned += [c.text for c in commands if isinstance(c, Warn)]
    if any(isinstance(c, Send) and c.peer == "t" and isinstance(c.message, Serve) for c in commands):
        warned += [c.text for c in core.step(1.0, Received("t", Serving(endpoint))) if isinstance(c, Warn)]
    core.check()
    return warned, {worker.name: worker.serves_at for worker in core.snapshot().workers}


def test_the_status_says_who_serves_where():
    assert announced("tcp://10.0.0.7:4242") == ([], {"trainer": "tcp://10.0.0.7:4242", "rollout": ""})


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:4242", "tcp://[::1]:4242"])
def test_a_loopback_that_others_are_to_reach_is_warned_of(endpoint):
    ((text,), _) = announced(endpoint)
    assert f"trainer on node0 hands policy versions on at {endpoint}" in text
    assert "if node1 are others, they cannot get them" in text
    assert "weights.host" in text
    assert announced(endpoint, host="node0")[0] == []
    assert announced(endpoint, keys="")[0] == []  # then nobody else may have them, and nobody is told to


def test_a_run_that_nobody_could_pull_from_goes_on_with_another_address(tmp_path):
    config = half(tmp_path)
    for override in ("weights.host=10.0.0.0/16", "run.private=true"):
        assert read_past(tmp_path, change_config(config, [override])) is not None
