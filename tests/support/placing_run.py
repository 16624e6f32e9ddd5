"""A core with rollout instances that come and go, and groups that are routed, finished and scored by name."""

from controller.core.commands import Send
from controller.core.events import PromptsRead
from protocol import messages
from protocol.messages import Attach, Beat, Delta, Generated
from tests.support.core_run import Run as OneInstanceRun


class Run(OneInstanceRun):
    """Routes and scores by name, instances that attach when the story has them come."""

    def __init__(self, *, prompts=6, group_size=2, instances=1, response=10, batch_groups=1,
                 outside=False, **sections):  # fmt: skip
        self.routes: dict[tuple[int, int], tuple[str, messages.Route]] = {}
        self.pulls: list[tuple[str, int]] = []
        super().__init__(
            instances=instances,
            run={"steps": 9},
            rollout={"instances": instances, "group_size": group_size, "max_response_tokens": response},
            trainer={"batch_groups": batch_groups, "local": not outside},
            **sections,
        )
        self.do(PromptsRead(0, prompts, True))
        self.encode()

    def do(self, event, at=None):
        super().do(event, at)
        for command in self.commands:
            if isinstance(command, Send) and isinstance(command.message, messages.Route):
                self.routes[command.message.group, command.message.member] = command.peer, command.message
            if isinstance(command, Send) and isinstance(command.message, messages.Pull):
                self.pulls.append((command.peer, command.message.policy_version))
        return self.commands

    def encode(self):
        """The reward worker encodes whatever it is asked to, each prompt to three tokens."""
        wanted = self.sent(messages.Encode)
        while wanted:
            lengths = tuple((group, 3) for group in wanted.pop(0).groups)
            self.say("reward-0", messages.PromptsEncoded(lengths, ()))
            wanted += self.sent(messages.Encode)

    def join(self, name, *, capacity=4, kv_tokens=1000, version=None):
        self.say(name, Attach("rollout", name, 1, "here"))
        self.say(name, messages.Ready(0, capacity, kv_tokens))
        if version is not None:
            self.say(name, messages.Pulled(version, "digest", 0.1))

    def finish(self, group, member, *, tokens=4, ending="stop"):
        """The member ends where it runs, under the version that its instance has."""
        peer, route = self.routes[group, member]
        version = self.core.state.registry.workers[peer].policy_version
        self.say(peer, Generated.of((Delta(group, member, route.attempt, 0, tokens, version, ending),)))

    def score(self, group):
        attempt = self.core.state.groups[group].score_attempt
        self.say("reward-0", messages.GroupScored(group, attempt, (0.0, 1.0)))

    def step(self, version):
        self.say("trainer", messages.TrainStepFinished(version, 0.1, ()))
        self.say("trainer", messages.PolicyPublished(version, f"v{version}", "digest", 1, 0.1))

    def beat(self, seconds):
        for _ in range(10 * seconds):
            for peer in list(self.core.state.registry.workers):
                self.say(peer, Beat(), at=self.now + 0.1)

    def status(self, peer, sequence, *, preemptions=0, waiting=0, resident=0, queued=()):
        running = len(self.core.state.registry.workers[peer].running)
        self.say(peer, messages.InstanceStatus(
            sequence, 0, running, waiting, resident, sequence, sequence, 0.1, 0, 0.0, 1, preemptions, queued,
        ))  # fmt: skip
