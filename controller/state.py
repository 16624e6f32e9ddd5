"""What the parts of the core share: the run's whole state, and the commands of the step that is being made.

Invariant: nothing here decides; each part changes only what its module names.
"""

import random

from controller.commands import Command, DropPayload, Send, Warn
from controller.config import Config
from controller.dispatch_queue import DispatchQueue
from controller.groups import Group, Trajectory
from controller.ledger import Ledger
from controller.metrics import Accounts
from controller.policy_versions import PolicyVersions
from controller.registry import Registry
from protocol.ids import PeerId
from protocol.messages import Message


class RunState:
    """One run, as the controller knows it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.now = 0.0
        self.registry = Registry()
        self.groups: dict[int, Group] = {}
        self.ledger = Ledger(
            max_staleness=config.staleness.max_staleness, batch_groups=config.trainer.batch_groups
        )
        self.queue = DispatchQueue()
        self.versions = PolicyVersions()
        self.accounts = Accounts(config.staleness.max_staleness)
        self.steps = 0  # train steps finished
        self.ending: str | None = None  # why the run is to end; None while it goes on
        self.ending_is_success = True
        self.finished = False
        self._out: list[Command] = []
        self._warned: set[str] = set()

    def emit(self, command: Command) -> None:
        """Add to the commands of this step."""
        self._out.append(command)

    def send(self, peer: PeerId, message: Message) -> None:
        """Add a message to the commands of this step."""
        self._out.append(Send(peer, message))

    def warn_once(self, kind: str, text: str) -> None:
        """Say it to the person who watches, the first time that this kind of thing happens."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._out.append(Warn(text))

    def take_commands(self) -> list[Command]:
        """The commands of this step, which is over."""
        out, self._out = self._out, []
        return out

    def end(self, reason: str, *, is_success: bool) -> None:
        """Bring the run to its end; the first reason counts."""
        if self.ending is None:
            self.ending, self.ending_is_success = reason, is_success

    def seed(self, trajectory: Trajectory) -> int:
        """The seed of a trajectory's sampling noise, a function of the run's seed and its id alone."""
        return random.Random(f"{self.config.run.seed}/{trajectory.id}").getrandbits(52)

    def remove_group(self, group: Group, end: str) -> None:
        """A group leaves the system without being trained: "aborted" or "filtered"."""
        if group.state in ("generating", "scoring", "occupied"):
            self.ledger.abort(group.id)
        for member in group.members:
            self.queue.remove(member)
        for worker in self.registry.text_workers():
            worker.encoding.discard(group.id)
            worker.scoring.discard(group.id)
        self.accounts.close(group, end)
        if group.members:
            self.accounts.counts[f"groups/{end}"] += 1
        del self.groups[group.id]
        self.emit(DropPayload((group.id,)))
