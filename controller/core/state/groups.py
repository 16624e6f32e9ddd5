"""Groups and their trajectories: one prompt, its responses, and where each of them stands.

Invariants: groups and trajectories move as the tables in `transitions` say; an attempt's number grows with
every route, also over a restart of its group, so that late reports of an abandoned attempt are recognized;
segments only grow, and the versions of sampled ones never decrease; a group is scored with exactly `size`
responses, and its spare ones are dropped. A response is one trajectory; an agent's is an episode of one or
more trajectories: the k-th of episode e is member `e + k * episodes`, and each of its turns follows tokens
given by the environment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from controller.core.state.agents.episodes import Episode
from controller.core.state.batches.contributions import Contribution, contribution_of
from controller.core.state.progress.trajectory import FIRST_EVALUATION_GROUP, Trajectory
from controller.core.state.transitions import GONE, GROUP, TRAJECTORY, GroupState, move_group, move_trajectory
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Ending


@dataclass(slots=True)
class Group:
    """All trajectories of one prompt."""

    id: int
    state: GroupState = "encoding"
    prompt_tokens: int = 0
    source: int = 0  # number of the source of its prompt
    source_row: int = 0  # number of its prompt among those read from the source
    prompt: int = 0  # identity of its prompt, equal for equal rows; 0: it has none
    window: int = -1  # window of prompts that the sampler ordered; -1: none
    expected_log: float = 0.0  # mean log(1 + tokens) of its responses, as the sampler expected it
    seen: float = 0.0  # number of earlier responses to its prompt that this is based on
    policy_version: int | None = None  # oldest version that any member was started under; the group's age
    size: int = 0  # responses that are trained
    members: list[Trajectory] = field(default_factory=list)  # `size` and spare ones; forks, too, of an agent
    episodes: list[Episode] = field(default_factory=list)  # of an agent: one for each response
    finished_lengths: list[int] = field(default_factory=list)  # of responses, in the order of their ends
    starts: int = 0  # 1, and one more for each time that it was started over
    is_cut_short: bool = False  # whether its running responses were told to end where they are
    rewards: tuple[float, ...] = ()
    reward_parts: tuple[tuple[str, tuple[float | None, ...]], ...] = ()  # None: it was not scored
    outcomes: tuple[float, ...] = ()  # TrainItem.outcome of each response
    turn_outcomes: tuple[tuple[float, ...], ...] = ()  # of each response, by turn; (): all tokens alike
    score_attempt: int = 0
    score_failures: int = 0
    reward_workers_lost: int = 0  # that died or went silent while they encoded it, or else scored it
    reward_workers_lost_alone: int = 0  # those of them that did nothing else
    contribution: Contribution | None = None  # while it is occupied

    def start(self, policy_version: int, *, size: int, spare: int = 0) -> None:
        """Begin generating: create `size` + `spare` trajectories, all queued.

        The trajectories of an agent exist already, and have asked for their first turns.
        """
        move_group(self, "started")
        self.policy_version, self.size = policy_version, size
        self.finished_lengths, self.is_cut_short, self.starts = [], False, self.starts + 1
        self.contribution = None
        if self.episodes:
            return
        attempts = [member.attempt for member in self.members] or [0] * (size + spare)
        self.members = [
            Trajectory(TrajectoryId(self.id, i), self.prompt_tokens, attempt=attempt)
            for i, attempt in enumerate(attempts)
        ]

    def begin(self, episodes: int) -> None:
        """Create its episodes, each with one trajectory that waits for its environment."""
        move_group(self, "begun")
        trials = [episode.trial for episode in self.episodes] or [0] * episodes
        attempts = [max(m.attempt for m in self.of(one)) for one in self.episodes] or [0] * episodes
        self.members = [Trajectory(TrajectoryId(self.id, i), 0, attempt=a) for i, a in enumerate(attempts)]
        self.episodes = [Episode(self.id, i, trial) for i, trial in enumerate(trials)]
        for member, episode in zip(self.members, self.episodes, strict=True):
            move_trajectory(member, "handed")
            episode.begin_anew(member.attempt)

    def fork(self, episode: Episode, number: int, *, is_trained: bool) -> Trajectory:
        """Give an episode another trajectory, which waits for its environment.

        Unused numbers before it are filled with dropped trajectories.
        """
        while len(self.members) <= number:
            self.members.append(Trajectory(TrajectoryId(self.id, len(self.members)), 0))
            move_trajectory(self.members[-1], "dropped")
        assert self.members[number].state == "dropped", f"{self.members[number].id} is there"
        member = Trajectory(
            TrajectoryId(self.id, number), 0, attempt=episode.first_attempt, is_trained=is_trained
        )
        move_trajectory(member, "handed")
        self.members[number] = member
        return member

    @property
    def is_evaluation(self) -> bool:
        """Whether its prompt is held out: it is never trained, and has no place in the ledger."""
        return self.id >= FIRST_EVALUATION_GROUP

    @property
    def is_complete(self) -> bool:
        """Whether `size` responses are finished."""
        return len(self.finished_lengths) >= self.size

    def of(self, episode: Episode) -> list[Trajectory]:
        """The trajectories of an episode, with the placeholders of unused numbers."""
        return self.members[episode.number :: len(self.episodes)]

    def response_of(self, member: Trajectory) -> int:
        """Number of the response that a trajectory belongs to: that of its episode, or its own."""
        return member.id.member % len(self.episodes) if self.episodes else member.id.member

    def episode_of(self, number: int) -> Episode:
        """The episode of trajectory `number`."""
        return self.episodes[number % len(self.episodes)]

    @property
    def trained(self) -> Iterator[Trajectory]:
        """Trained trajectories, those of one episode together."""
        if not self.episodes:
            return self.kept
        members = (member for episode in self.episodes for member in self.of(episode))
        return (member for member in members if member.state == "finished")

    @property
    def kept(self) -> Iterator[Trajectory]:
        """Scored and trained responses; an episode stands as its first finished trajectory."""
        if not self.episodes:
            return (member for member in self.members if member.state == "finished")
        return (self._finished_of(episode)[0] for episode in self.kept_episodes)

    @property
    def kept_episodes(self) -> list[Episode]:
        """Episodes that are scored and trained."""
        return [episode for episode in self.episodes if self._finished_of(episode)]

    def _finished_of(self, episode: Episode) -> list[Trajectory]:
        return [member for member in self.of(episode) if member.state == "finished"]

    @property
    def places(self) -> dict[int, int]:
        """Place of each response among `kept`, by its number."""
        return {self.response_of(member): place for place, member in enumerate(self.kept)}

    @property
    def response_lengths(self) -> list[int]:
        """Sampled tokens of each response of `kept`; of an episode, of all its trajectories."""
        if not self.episodes:
            return [member.response_tokens for member in self.kept]
        found = [self._finished_of(episode) for episode in self.kept_episodes]
        return [sum(member.response_tokens for member in members) for members in found]

    @property
    def response_tokens(self) -> int:
        """Tokens generated for the group so far, without dropped members."""
        return sum(member.response_tokens for member in self.members if member.state != "dropped")

    def finish(self, member: Trajectory, ending: Ending) -> None:
        """A response is complete."""
        self.finish_member(member, ending)
        self.finished_lengths.append(member.response_tokens)

    def finish_member(self, member: Trajectory, ending: Ending) -> None:
        """A trajectory is complete."""
        move_trajectory(member, "finished")
        member.ending = ending

    def oldest_token_version(self) -> int:
        """Version of the oldest trained token, which is never older than `policy_version`."""
        assert self.policy_version is not None, f"group {self.id} has not started"
        first = [version for member in self.trained if (version := member.first_version) >= 0]
        return min(first, default=self.policy_version)

    def take(
        self, number: int, attempt: int, start: int, count: int, policy_version: int, peer: PeerId
    ) -> Trajectory | None:
        """Give the tokens of a delta to the member that it continues; None if the delta is late.

        A late delta is of an attempt that does not run at `peer`, of known tokens, or of an older version.
        """
        member = self.members[number] if number < len(self.members) else None
        if (
            member is None
            or member.state != "running"
            or member.peer != peer
            or member.attempt != attempt
            or member.reported != start
            or self.policy_version is None
        ):
            return None
        # older than its group: the pull that was to come before this attempt has failed
        if count and (
            policy_version < self.policy_version or not member.extend(attempt, policy_version, count)
        ):
            return None
        return member

    def check(self) -> None:
        """Assert what holds of the group and its members in its state."""
        here = f"group {self.id} is {self.state}"
        assert self.state in GROUP.states, here
        assert self.state != GONE, f"{here}, and still among the groups"
        has_begun = self.state not in ("encoding", "beginning", "waiting")
        assert has_begun == (self.policy_version is not None), f"{here}, of version {self.policy_version}"
        assert not has_begun or len(self.members) >= self.size > 0, (
            f"{here}, with {len(self.members)} members"
        )
        if self.state in ("scoring", "occupied", "training"):
            finished = sum(1 for _ in self.kept)
            assert finished == self.size, f"{here}, with {finished} of {self.size} responses"
            assert all(m.state in ("finished", "dropped") for m in self.members), f"{here}, and not complete"
        if self.state in ("occupied", "training"):
            assert len(self.rewards) == len(self.outcomes) == self.size, f"{here}, with {self.rewards}"
        for member in self.members:
            assert member.state in TRAJECTORY.states, f"{member.id} is {member.state}"
            is_placed = member.peer is not None
            assert is_placed == (member.state == "running"), (
                f"{member.id} is {member.state}, at {member.peer}"
            )
            assert bool(member.ending) == (member.state == "finished"), f"{member.id} is {member.state}"

    def contribute(self) -> Contribution:
        """The group's contribution to its batch. Call it once the group is scored; it never changes."""
        if self.contribution is None:
            self.contribution = contribution_of(self)
        return self.contribution
