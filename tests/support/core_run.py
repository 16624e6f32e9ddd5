"""A core with one of each worker, whose events a test says by hand."""

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Send
from controller.core.core import Core
from controller.core.events import (
    RULES,
    PromptsRead,
    Received,
    Started,
)
from protocol import messages
from protocol.messages import Attach, Delta, Generated


class Run:
    """A core with one of each worker attached, and a clock that moves by hand."""

    def __init__(self, *, instances=1, version=0, rules=RULES, **sections) -> None:
        self.config = Config.model_validate(
            {
                "run": {"steps": 2},
                "rollout": {
                    "instances": instances,
                    "group_size": 2,
                    "max_response_tokens": 10,
                    "max_running": 4,
                },
                "trainer": {"batch_groups": 2},
                "staleness": {"max_staleness": 1, "mu": 0.0, "synchronization": "greedy"},
                **sections,
            }
        )
        self.core = Core(self.config, load_strategies(self.config))
        self.now = 0.0
        self.commands: list = []
        self.do(Started(rules))
        for name, role in (("trainer", "trainer"), ("reward-0", "reward")):
            self.attach(name, role)
        for i in range(instances):
            self.attach(f"rollout-{i}", "rollout")
        self.publish(version, "v", "digest")

    def do(self, event, at=None):
        self.now = self.now + 0.01 if at is None else at
        self.commands = self.core.step(self.now, event)
        self.core.check()
        return self.commands

    def attach(self, name, role):
        self.say(name, Attach(role, name, 1, "here"))
        self.say(name, messages.Ready(0, 4 if role == "rollout" else 0, 1000 if role == "rollout" else 0))

    def say(self, peer, message, at=None):
        return self.do(Received(peer, message), at)

    def publish(self, version, location="v1", digest="digest1"):
        """As a trainer that was told to make this version."""
        self.core.state.registry.workers["trainer"].told.may_publish[version] = None
        return self.say("trainer", messages.PolicyPublished(version, location, digest, 1, 0.1))

    def sent(self, kind):
        return [c.message for c in self.commands if isinstance(c, Send) and isinstance(c.message, kind)]

    def start_groups(self, count=2):
        """Prompts are read and encoded, the first instance has version 0; returns the routes."""
        self.do(PromptsRead(0, count, True))
        self.say("reward-0", messages.PromptsEncoded(tuple((g, 3) for g in range(count)), ()))
        routes = self.sent(messages.Route)
        self.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        return [*routes, *self.sent(messages.Route)]

    def generate(self, route, count, ending="stop", *, start=0, version=0, peer="rollout-0"):
        delta = Delta(route.group, route.member, route.attempt, start, count, version, ending)
        return self.say(peer, Generated.of((delta,)))
