"""A small run without processes: every command is answered in turn, and journaled as a shell does."""

import json
import sqlite3
from collections import deque
from pathlib import Path

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core import commands
from controller.core.commands import Command, Send
from controller.core.core import Core
from controller.core.events import RULES, Event, PromptsRead, Received, Started
from controller.durability.damage import event_checksum
from controller.durability.fingerprint import fingerprint
from controller.durability.release import release as release_here
from controller.durability.store import Store
from protocol import messages
from protocol.messages import Attach, Delta, Generated, Message

OTHER_RELEASE = '{"staleflow": "test"}'


def execute(path: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    """Change the journal as other code would have written it: with checksums that fit."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement, values)
    rows = db.execute("SELECT seq, now, event FROM events").fetchall()
    sums = [(event_checksum(*row), row[0]) for row in rows]
    db.executemany("UPDATE events SET checksum = ? WHERE seq = ?", sums)
    db.close()


class AnsweredRun:
    """Two rollout workers, a reward worker and a trainer that answer at once, 10 ms apart."""

    def __init__(
        self,
        path: Path,
        *,
        steps: int = 4,
        run_dir: str = "somewhere",
        import_paths: str = "[]",
        data: dict[str, object] | None = None,
        trainer: dict[str, object] | None = None,
        release: str | None = None,
        **staleness: object,
    ) -> None:
        self.config = Config.model_validate(
            {
                "run": {"steps": steps},
                "data": data or {},
                "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 10, "max_running": 4},
                "trainer": {"batch_groups": 2, "lr": 0.1, "keep_checkpoints": 1, **(trainer or {})},
                "staleness": {"max_staleness": 1, "mu": 0.0, **staleness},
            }
        )
        self.core = Core(self.config, load_strategies(self.config), run_dir=run_dir)
        self.store = Store(path)
        with self.store.transaction():
            facts = {
                "config": self.config.model_dump_json(),
                "run_dir": run_dir,
                "import_paths": import_paths,
                "release": release or json.dumps(release_here()),
            }
            for name, value in facts.items():
                self.store.put_fact(name, value)
        self.inbox: deque[Event] = deque([Started(RULES)])
        for name, role in (("rollout-0", "rollout"), ("rollout-1", "rollout"), ("reward-0", "reward")):
            self.join(name, role)
        self.join("trainer", "trainer")
        self.hear("trainer", messages.PolicyPublished(0, "v", "digest", 1, 0.1))
        self.events, self.now, self.routes, self.read = 0, 0.0, 0, 0

    def join(self, name: str, role: messages.Role) -> None:
        self.hear(name, Attach(role, name, 1, "here"))
        is_rollout = role == "rollout"
        self.hear(name, messages.Ready(0, 4 if is_rollout else 0, 1000 if is_rollout else 0))

    def hear(self, peer: str, message: Message) -> None:
        self.inbox.append(Received(peer, message))

    def to_the_end(self, *, max_events: int = 10_000, flush: bool = True) -> None:
        """One event a turn; `flush=False` ends as a killed controller does, without the last fingerprint."""
        last: tuple[int, bytes] | None = None
        while self.inbox and self.events < max_events:
            event = self.inbox.popleft()
            self.events, self.now = self.events + 1, self.now + 0.01
            with self.store.transaction():
                if last is not None:
                    self.store.put_fingerprints(*last)
                number = self.store.append_events(self.now, [(event, False)])
            wanted = self.core.step(self.now, event)
            last = (number, fingerprint(wanted))
            for command in wanted:
                self.answer(command)
        if flush and last is not None:
            with self.store.transaction():
                self.store.put_fingerprints(*last)
        self.store.close()

    def answer(self, command: Command) -> None:
        match command:
            case commands.ReadPrompts(count):
                self.inbox.append(PromptsRead(self.read, count, False))
                self.read += count
            case Send(peer, message):
                self.answer_message(peer, message)
            case _:
                pass

    def answer_message(self, peer: str, message: Message) -> None:
        match message:
            case messages.Encode(groups):
                self.hear(peer, messages.PromptsEncoded(tuple((group, 3) for group in groups), ()))
            case messages.Route(group, member, attempt):
                self.routes += 1
                version = self.core.state.registry.workers[peer].next_version  # type: ignore[attr-defined]
                length = min(1 + self.routes % 7, message.max_new_tokens)
                self.hear(peer, Generated.of((Delta(group, member, attempt, 0, length, version, "stop"),)))
            case messages.Score(group, attempt, items):
                self.hear(peer, messages.GroupScored(group, attempt, tuple(0.5 * i.member for i in items)))
            case messages.Pull(policy_version):
                self.hear(peer, messages.Pulled(policy_version, "digest", 0.1))
            case messages.Train(train_version):
                self.hear(peer, messages.TrainStepFinished(train_version + 1, 0.1, (("loss", 1 / 3),)))
                self.hear(peer, messages.PolicyPublished(train_version + 1, "v", "digest", 1, 0.1))
            case messages.SaveCheckpoint(policy_version):
                self.hear(peer, messages.CheckpointSaved(policy_version, "checkpoint"))
            case _:
                pass
