"""The lies of `lies` over real sockets, to a real server, shell and journal; then a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted_peers import PROMPTS, Peer, settings

from controller import Controller
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host.supervisor import Supervisor
from protocol.errors import RunError
from protocol.messages import Role
from tests.support.lies import LIES
from tests.support.lying import Liar, Lie
from tests.support.scripted import Disk
from tests.support.scripted_run import honest, trained_groups

STEPS = 2
LIMIT_S = 300
NAMES: dict[Role, str] = {"rollout": "node", "reward": "judge", "trainer": "trainer"}


NO_LIES_HERE = ("the response of another instance", "saves twice")
"""A liar that is first, or alone, was given that response itself; and who has saved the last version is not
heard any more. tests/simulation/test_liars.py tells both."""


def some(stride: int) -> list[object]:
    """One lie in `stride` by default; the others in the thorough tests."""
    return [
        pytest.param(
            lie, marks=() if place % stride == 0 else pytest.mark.thorough, id=f"{lie.role}: {lie.name}"
        )
        for place, lie in enumerate(LIES)
        if lie.name not in NO_LIES_HERE
    ]


class Stage:
    """One life of a controller, with scripted workers around it."""

    def __init__(self, config: Config, disk: Disk) -> None:
        self.config, self.make = config, honest(config, disk)
        self.said: list[str] = []
        self.peers: list[Peer] = []
        self.controller = Controller(config, prompts=PROMPTS, on_warning=self.said.append)

    @asynccontextmanager
    async def at_work(self, *, within_s: float = LIMIT_S) -> AsyncIterator[None]:
        """The controller under a time limit; its workers leave at the end."""
        try:
            async with asyncio.timeout(within_s), self.controller:
                yield
        finally:
            for peer in self.peers:
                peer.leave()

    def add(self, role: Role, name: str, lie: Lie | None = None) -> Peer:
        worker = self.make(name, role)
        self.peers.append(Peer(self.controller.run_dir, Liar(worker, lie) if lie else worker))
        return self.peers[-1]

    def add_honest(self, *, but: Role | None = None) -> None:
        """One worker of each role, `but` of this one."""
        for role, name in NAMES.items():
            if role != but:
                self.add(role, name)

    async def to_the_end(self) -> None:
        """Raises: RunError as the controller does."""
        async for _ in self.controller.train():
            pass

    async def play_alone(self, lie: Lie) -> None:
        """To the end, with a liar alone in its role. Raises: RunError as the controller does."""
        async with self.at_work():
            self.add(lie.role, "liar", lie)
            self.add_honest(but=lie.role)
            await self.to_the_end()

    @property
    def names_the_liar(self) -> bool:
        return any("liar was closed: " in text for text in self.said)


def check_the_end(stage: Stage, disk: Disk) -> None:
    summary = stage.controller.summary
    assert summary["is_success"], summary["reason"]
    assert trained_groups(disk) == list(range(2 * STEPS))
    assert summary["staleness/violations"] == 0
    spent = sum(summary[f"tokens/{end}"] for end in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
    with Recording(stage.controller.run_dir) as recording:
        assert replay(recording).is_equal
        assert not recording.skipped


@pytest.mark.parametrize("lie", some(40))
async def test_the_liar_is_closed_by_name_and_another_of_its_role_ends_the_run(tmp_path, lie):
    disk = Disk()
    stage = Stage(settings(tmp_path, steps=STEPS), disk)
    async with stage.at_work():
        stage.add_honest(but=lie.role)
        liar = stage.add(lie.role, "liar", lie)
        await liar.busy.wait()  # it is asked first
        if lie.role != "trainer":
            stage.add(lie.role, NAMES[lie.role])
        await liar.closed.wait()
        if lie.role == "trainer":
            stage.add("trainer", "honest")
        await stage.to_the_end()
    assert liar.close is not None
    assert liar.close.is_fault
    assert stage.names_the_liar, stage.said
    check_the_end(stage, disk)


@pytest.mark.parametrize("lie", some(60))
async def test_alone_in_its_role_it_ends_the_run_which_an_honest_worker_takes_up(tmp_path, lie):
    disk, config = Disk(), settings(tmp_path, steps=STEPS)
    first = Stage(config, disk)
    with pytest.raises(RunError, match="liar was closed: "):
        await first.play_alone(lie)
    second = Stage(config, disk)
    async with second.at_work():
        second.add_honest()
        await second.to_the_end()
    check_the_end(second, disk)


async def test_a_trainer_of_this_machine_that_has_saved_nothing_is_not_believed(tmp_path, monkeypatch):
    for name in ("spawn", "kill"):
        monkeypatch.setattr(Supervisor, name, lambda *arguments: None)  # the trainer comes over the socket
    base = settings(tmp_path, steps=STEPS)
    config = base.model_copy(update={"trainer": base.trainer.model_copy(update={"local": True})})
    stage = Stage(config, Disk())
    async with stage.at_work():
        stage.add_honest(but="trainer")
        await stage.add("trainer", NAMES["trainer"]).closed.wait()
    closed = [text for text in stage.said if text.startswith("trainer was closed: ")]
    assert closed == ["trainer was closed: It saved /checkpoints/step_2, where nothing is."]
