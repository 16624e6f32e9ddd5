"""A core with an agent, whose environments a test speaks for by hand."""

from controller.core.events import PromptsRead
from protocol import messages
from protocol.messages import Ask, Attach, Begin, EndEpisodes, EpisodeEnded, EpisodeFailed, Route, Turn
from tests.support.core_run import Run

AGENT = {"function": "by_hand", "concurrency": 8}


class AgentRun(Run):
    """Groups of two episodes, one instance with version 0, one agent worker."""

    def __init__(self, *, prompts=2, agents=1, capacity=8, **sections) -> None:
        agent = AGENT | {"workers": agents} | sections.pop("agent", {})
        rollout = {"instances": 1, "group_size": 2, "max_response_tokens": 10, "max_running": 8}
        rollout |= {"max_prompt_tokens": 50} | sections.pop("rollout", {})
        self.begins: dict[tuple[int, int], Begin] = {}
        self.turns: dict[tuple[int, int], Turn] = {}  # the newest of each trajectory
        self.ended: list[tuple[int, int, int]] = []
        self.routes: dict[tuple[int, int], Route] = {}
        self.at: dict[tuple[int, int], str] = {}
        super().__init__(agent=agent, rollout=rollout, **sections)
        for number in range(agents):
            self.join(f"agent-{number}", capacity)
        self.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        self.do(PromptsRead(0, prompts, True))

    def join(self, name: str, capacity: int = 8) -> None:
        """A worker comes."""
        self.say(name, Attach("agent", name, 1, "here"))
        self.say(name, messages.Ready(0, capacity, 0))

    def do(self, event, at=None):
        commands = super().do(event, at)
        for command in commands:
            message = getattr(command, "message", None)
            match message:
                case Begin(group, episode):
                    self.begins[group, episode] = message
                    self.at[group, episode] = command.peer
                    for member in range(episode, 10, message.episodes):
                        self.turns.pop((group, member), None)
                case Turn(group):
                    self.turns[group, message.member] = message
                case Route(group, member):
                    self.routes[group, member] = message
                case EndEpisodes(episodes):
                    self.ended += episodes
        return commands

    def worker_of(self, group: int, episode: int) -> str:
        """Where an episode was begun last."""
        return self.at[group, episode]

    def ask(self, group=0, episode=0, *, fork=0, given=3, digest="d", most=5, **other):
        """The environment speaks: as an honest worker would, but for the fields that are given.

        `fork`: in which of its trajectories.
        """
        begin = self.begins[group, episode]
        member = episode + fork * begin.episodes
        turn = self.turns.get((group, member))
        told = self.core.state.registry.workers[self.worker_of(group, episode)].told
        begun = told.begun.get((group, episode, begin.trial))
        number = 0 if turn is None else turn.number + 1
        attempt = (begin.attempt if turn is None else turn.attempt) + 1
        keep = begun.trajectories[member].length if begun is not None and turn is not None else 0
        if turn is None and begin.restored:  # the first since then
            number, keep, attempt, _ = begin.restored[fork]
            attempt += 1
        fields = {"number": number, "member": member, "attempt": attempt, "keep": keep, "given": given}
        fields |= {"digest": f"{digest}{number}", "max_new_tokens": most, "trial": begin.trial} | other
        trial = fields.pop("trial")
        return self.say(self.worker_of(group, episode), Ask(group, episode, trial, **fields))

    def ask_all(self, groups=(0, 1)):
        """Every episode asks for the first time."""
        for group in groups:
            for episode in (0, 1):
                self.ask(group, episode)

    def sample(self, group=0, episode=0, count=4, ending="stop", *, start=0):
        """The policy answers."""
        return self.generate(self.routes[group, episode], count, ending, start=start)

    def end(self, group=0, episode=0, reward=1.0, *, ending="stop", **more):
        """The function returns."""
        rewards = () if reward is None else (reward,)
        more = {"earned": "end"} | more
        trial = self.begins[group, episode].trial
        return self.say(
            self.worker_of(group, episode), EpisodeEnded(group, episode, trial, ending, rewards, **more)
        )

    def fail(self, group=0, episode=0, kind="environment", reason="it is gone"):
        """The environment, or the function, fails."""
        trial = self.begins[group, episode].trial
        failed = EpisodeFailed(group, episode, trial, kind, reason, "{}")
        return self.say(self.worker_of(group, episode), failed)

    def lose(self, name: str) -> None:
        """An agent worker goes."""
        self.say(name, messages.Detach("it goes"))

    def member(self, group=0, episode=0):
        """The trajectory of an episode."""
        return self.core.state.groups[group].members[episode]

    @property
    def counts(self):
        """Of rare things."""
        return self.core.state.accounts.counts
