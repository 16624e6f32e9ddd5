"""What pages of the view ought to show, by accounts of its own: kept from what was said on the links alone.

Invariants: nothing of the core's state, of its ledger or of the view is asked; a group's deadline is that of
the oldest weights that any of its responses began with; places are found by trying them, earliest deadline
first. It knows text runs that wait for stragglers and start nothing to spare, with any faults.
"""

from collections import Counter
from dataclasses import dataclass, field

from controller.core.commands import DropPayload, Forget, Send
from controller.core.events import Received
from protocol import messages

UNDER_WAY = ("generating", "scoring")


@dataclass
class Response:
    """One response of a group that has started."""

    state: str = "queued"
    attempt: int = 0
    tokens: int = 0
    peer: str = ""


@dataclass
class Prompt:
    """A prompt that has been encoded."""

    state: str = "fresh"
    version: int = -1  # of the oldest weights that a response began with
    responses: list[Response] = field(default_factory=list)

    def count(self, state):
        """Responses in this state."""
        return sum(one.state == state for one in self.responses)


@dataclass
class Peer:
    """A worker."""

    name: str
    role: str
    is_ready: bool = False
    version: int = -1
    pulling: int | None = None
    encoding: set[int] = field(default_factory=set)
    scoring: set[int] = field(default_factory=set)


class Oracle:
    """Follows a run by its events and the commands that they gave."""

    def __init__(self, config):
        self.size, self.most = config.rollout.group_size, config.rollout.max_response_tokens
        self.batch, self.bound = config.trainer.batch_groups, config.staleness.max_staleness
        self.prompts: dict[int, Prompt] = {}
        self.peers: dict[str, Peer] = {}
        self.newest, self.train_version, self.steps = -1, 0, 0
        self.training: list[int] = []
        self.now = 0.0
        self.seconds: dict[str, Counter[str]] = {}  # of each worker's name, by what it did
        self.closed_s: Counter[str] = Counter()  # by what kept the next prompt from starting
        self._closed = "weights"
        self._standing: dict[str, str] = {}

    # -- what happens -----------------------------------------------------------------------------------

    def take(self, now, event, commands):
        """An event, and what the controller said to it."""
        for name, kind in self._standing.items():
            self.seconds.setdefault(name, Counter())[kind] += now - self.now
        self.closed_s[self._closed] += now - self.now
        self.now = now
        if isinstance(event, Received):
            self._heard(event.peer, event.message)
        for command in commands:
            if isinstance(command, Send):
                self._said(command.peer, command.message)
            elif isinstance(command, DropPayload):
                for group in command.groups:
                    self.prompts.pop(group, None)
            elif isinstance(command, Forget):
                self._gone(command.peer)
        self._stand()
        self._closed = self.why_no_more()

    def _heard(self, name, message):
        if isinstance(message, messages.Attach):
            self.peers[name] = Peer(message.name, message.role)
        peer = self.peers.get(name)
        if peer is None:
            return
        match message:
            case messages.Ready():
                peer.is_ready = True
            case messages.PromptsEncoded():
                answered = [group for group, _ in (*message.encoded, *message.refused)]
                for group, _ in message.encoded:
                    if group in peer.encoding:
                        self.prompts[group] = Prompt()
                peer.encoding.difference_update(answered)
            case messages.Generated():
                for delta in message.deltas:
                    self._grew(name, delta)
            case messages.GroupScored(group) if group in peer.scoring:
                peer.scoring.discard(group)
                self.prompts[group].state = "occupied"
            case messages.ScoreFailed(group):
                peer.scoring.discard(group)
            case messages.Pulled(version):
                peer.version, peer.pulling = version, None
            case messages.PullFailed():
                peer.pulling = None
            case messages.PolicyPublished(version):
                self.newest = max(self.newest, version)
            case messages.TrainStepFinished(version):
                self.steps, self.training = version, []

    def _said(self, name, message):
        peer = self.peers.get(name)
        if peer is None:
            return
        match message:
            case messages.Encode(groups):
                peer.encoding.update(groups)
            case messages.Pull(version):
                peer.pulling = version
            case messages.Route(group, member, attempt):
                self._routed(name, group, member, attempt)
            case messages.Abort(attempts):
                for group, member, attempt in attempts:
                    self._back(group, member, attempt)
            case messages.Score(group):
                peer.scoring.add(group)
            case messages.Train(train_version, items):
                self.training = list(dict.fromkeys(item.group for item in items))
                for group in self.training:
                    self.prompts.pop(group, None)
                self.train_version = train_version + 1

    def _routed(self, name, group, member, attempt):
        prompt, peer = self.prompts[group], self.peers[name]
        version = peer.version if peer.pulling is None else peer.pulling
        if prompt.state == "fresh":
            prompt.state, prompt.version = "generating", version
            prompt.responses = [Response() for _ in range(self.size)]
        response = prompt.responses[member]
        if not response.tokens:
            prompt.version = min(prompt.version, version)
        response.state, response.attempt, response.peer = "running", attempt, name

    def _grew(self, name, delta):
        prompt = self.prompts.get(delta.group)
        if prompt is None or delta.member >= len(prompt.responses):
            return
        response = prompt.responses[delta.member]
        if (response.state, response.peer, response.attempt) != ("running", name, delta.attempt):
            return
        response.tokens += delta.count
        if delta.ending:
            is_over = delta.ending != "interrupt" or response.tokens >= self.most
            response.state, response.peer = ("finished" if is_over else "queued"), ""
        self._complete(prompt)

    def _complete(self, prompt):
        if prompt.state == "generating" and prompt.count("finished") == self.size:
            prompt.state = "scoring"

    def _back(self, group, member, attempt):
        prompt = self.prompts.get(group)
        response = None if prompt is None else prompt.responses[member]
        if response is not None and (response.state, response.attempt) == ("running", attempt):
            is_over = response.tokens >= self.most
            response.state, response.peer = ("finished" if is_over else "queued"), ""
            self._complete(prompt)

    def _gone(self, name):
        if self.peers.pop(name, None) is None:
            return
        for group, prompt in self.prompts.items():
            for member, response in enumerate(prompt.responses):
                if response.peer == name:
                    self._back(group, member, response.attempt)

    # -- places -----------------------------------------------------------------------------------------

    def in_ledger(self):
        """Groups that have started and no batch has taken."""
        return {group: one for group, one in self.prompts.items() if one.state in (*UNDER_WAY, "occupied")}

    def due(self, group):
        """The last batch that may take it."""
        return self.prompts[group].version + self.bound

    def fits(self, dues, first):
        """Whether groups that are due then find places in the batches from `first` on."""
        return all(first + place // self.batch <= due for place, due in enumerate(sorted(dues)))

    def room(self, due):
        """How many groups more, due then, would find places beside all others."""
        dues = [self.due(group) for group in self.in_ledger()]
        count = 0
        while due >= self.train_version and self.fits([*dues, *[due] * (count + 1)], self.train_version):
            count += 1
        return count

    def columns(self):
        """Of each batch of the window what it takes, what is under way for it, its room and its state."""
        there = self.in_ledger()
        scored = sorted(self.due(group) for group, one in there.items() if one.state == "occupied")
        under_way = [self.due(group) for group, one in there.items() if one.state in UNDER_WAY]
        found = []
        for version in range(self.train_version, self.train_version + self.bound + 1):
            taken, scored = scored[: self.batch], scored[self.batch :]
            is_ready = len(taken) == self.batch and self.fits([*scored, *under_way], version + 1)
            room = self.room(version)
            words = {(True, True): "READY_WITH_CAPACITY", (True, False): "READY", (False, True): "PENDING"}
            found.append({
                "train_version": version,
                "state": words.get((is_ready, room > 0), "STUCK"),
                "occupied": len(taken),
                "reserved": under_way.count(version),
                "free": room,
                "groups": {group for group in there if self.due(group) == version},
            })  # fmt: skip
        return found

    # -- what workers do --------------------------------------------------------------------------------

    def why_idle(self):
        """The rule that keeps the next prompt from starting."""
        if self.newest < 0:
            return "idle: weights"
        if any(one.count("queued") for one in self.prompts.values()):
            return "idle: routing"
        if not self.fresh():
            return "idle: data"
        return "idle: cap" if self.room(self.newest + self.bound) else "idle: bound"

    def why_no_more(self):
        """The rule that keeps the next prompt from starting; "open" where that is admission or routing."""
        if self.newest < 0:
            return "weights"
        if not self.fresh():
            return "prompts"
        return "open" if self.room(self.newest + self.bound) else "bound"

    def fresh(self):
        """Encoded prompts that have not started."""
        return [group for group, one in self.prompts.items() if one.state == "fresh"]

    def running_on(self, name):
        """Responses that run there."""
        return sum(one.peer == name for prompt in self.prompts.values() for one in prompt.responses)

    def _stand(self):
        """Note what each worker does from now on."""
        here, why = {}, None
        for name, peer in self.peers.items():
            if peer.role == "trainer":
                if peer.is_ready:
                    here[peer.name] = self._waits()
            elif not peer.is_ready:
                here[peer.name] = "starting"
            elif peer.role == "reward":
                idle = "encoding" if peer.encoding else "idle: nothing to do"
                here[peer.name] = "scoring" if peer.scoring else idle
            elif peer.pulling is not None:
                here[peer.name] = "pulling"
            elif self.running_on(name):
                here[peer.name] = "generating"
            else:
                here[peer.name] = why = why or self.why_idle()
        self._standing = dict.fromkeys(self._standing, "gone") | here

    def _waits(self):
        """What the trainer waits for."""
        instances = [name for name, one in self.peers.items() if one.role == "rollout" and one.is_ready]
        scorers = [name for name, one in self.peers.items() if one.role == "reward" and one.is_ready]
        if self.training:
            return "training"
        if not (scorers and instances and self.newest >= 0):
            return "waits: start-up"
        states = Counter(one.state for one in self.prompts.values())
        missing, unscored = self.batch - states["occupied"], states["scoring"]
        is_short = missing > 0 and unscored >= missing
        if is_short or (missing <= 0 and unscored > states["generating"]):
            return "waits: scoring"
        has_more = bool(self.fresh()) and not any(one.count("queued") for one in self.prompts.values())
        busy = [name for name in instances if self.running_on(name)]
        if any(self.peers[name].pulling is None for name in busy):
            return "waits: cap" if 2 * len(busy) < len(instances) and has_more else "waits: rollout"
        if self.newest < self.steps or any(self.peers[name].pulling is not None for name in instances):
            return "waits: weights"
        if unscored:
            return "waits: scoring"
        if not self.fresh() and not any(one.count("queued") for one in self.prompts.values()):
            return "waits: data"
        return "waits: cap" if has_more else "waits: rollout"
