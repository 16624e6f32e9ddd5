"""A process of episodes that has died before the worker used it."""

import asyncio

from workers.agent.child import AgentChild
from workers.children.process import Code


class Listener:
    def __init__(self):
        self.failed = []

    def on_ask(self, child, number, question, asked):
        raise AssertionError

    def on_ended(self, number, ended):
        raise AssertionError

    def on_failed(self, number, kind, reason):
        self.failed.append((number, kind, reason))


def test_an_episode_that_begins_in_a_process_which_has_just_died_is_reported():
    async def begin():
        listener = Listener()
        child = AgentChild(
            Code("the agent", "agent.memory_mb", 9), setup=b"", most_blocked_s=1.0, listener=listener,
            on_gone=lambda child: None, on_obeyed=lambda child: None, is_alone=True,
        )  # fmt: skip
        child.ready.set_result(None)
        child.reason = "It died as soon as it was ready."
        child.gone.set()
        child.begin(7, 0, b"{}")
        assert child.is_idle
        return listener.failed

    assert asyncio.run(begin()) == [(7, "process", "It died as soon as it was ready.")]
