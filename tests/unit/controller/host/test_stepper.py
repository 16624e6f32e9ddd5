"""Words on which the core fails: passed over, remembered, and blamed on nobody who did not say them."""

from pathlib import Path

import pytest

from controller.core.core import Core
from controller.core.decisions.supply.scoring import Scoring
from controller.core.decisions.workers.plausibility import Plausibility
from controller.core.events import PeerFaulted, Received, Tick
from controller.durability import snapshots
from controller.durability.recording import Recording
from controller.durability.replay import replay, verdict_in_words
from controller.durability.snapshots import Snapshots
from controller.history.story import story
from controller.history.trace import trace
from controller.host.resume import read_past
from controller.host.resumed_run import MAX_SKIPPED
from controller.host.stepper import Stepper
from protocol import messages
from protocol.errors import ConfigError, RunError
from protocol.messages import Beat, GroupScored, Role
from tests.support.lies import scores
from tests.support.scripted import Disk, Scripted
from tests.support.scripted_run import ScriptedRun, config_of, honest, trained_groups

MINE = (3.0, 4.0)  # rewards on which the core fails, while it is mined
NAMES: dict[Role, str] = {"rollout": "node", "reward": "judge", "trainer": "trainer"}


@pytest.fixture
def mined(monkeypatch):
    """A core that fails on some rewards; the error can be chosen."""
    taken, errors = Scoring.on_scored, [ZeroDivisionError("a bug")]

    def on_scored(self: Scoring, worker, message: GroupScored) -> None:
        taken(self, worker, message)  # the damage is done
        if message.rewards == MINE:
            raise errors[0]

    monkeypatch.setattr(Scoring, "on_scored", on_scored)
    return errors


class Careless(Scripted):
    """A reward worker that steps on the mine once."""

    def __init__(self, worker: Scripted) -> None:
        super().__init__(worker.name)
        self.role, self.worker, self.is_done = worker.role, worker, False

    def answer(self, message, frames):
        said = self.worker.answer(message, frames)
        if self.is_done or not isinstance(message, messages.Score):
            return said
        self.is_done = True
        return scores(*MINE)(self.worker, message, said)


def make_run(path: Path, *, careless: int = 0, **keys) -> tuple[ScriptedRun, Disk]:
    """A run of local workers, the first reward workers of which are careless."""
    config, disk, left = config_of(steps=4, is_local=True), Disk(), [careless]
    make = honest(config, disk)

    def make_one(name: str, role: Role) -> Scripted:
        worker = make(name, role)
        if role == "reward" and left[0]:
            left[0] -= 1
            return Careless(worker)
        return worker

    return ScriptedRun(path, config, make_one, **keys), disk


def faults_in(run: ScriptedRun) -> list[str]:
    return [text for text in run.warnings if "The core failed on its" in text]


def check_the_end(run: ScriptedRun, disk: Disk, *, skipped: int) -> None:
    assert run.end is not None
    assert run.end.is_success, run.end.reason
    assert trained_groups(disk) == list(range(8))
    with run.store.transaction():
        run.stepper.write_rest()
    recording = Recording.live(run.store)
    assert replay(recording).is_equal
    assert sum(bool(reason) for reason in recording.skipped.values()) == skipped
    assert run.store.faults_skipped() == skipped


@pytest.mark.parametrize("durability", ["process", "off"])
def test_the_author_is_closed_by_name_and_the_run_goes_on_as_if_nothing_had_been_said(
    tmp_path, mined, durability
):
    run, disk = make_run(tmp_path / "run.db", careless=1, durability=durability)
    run.run()
    check_the_end(run, disk, skipped=1)
    passed_over, closed = faults_in(run)
    assert "was passed over (1 of 3 in a run)" in passed_over
    assert closed.startswith("reward-0 was closed: The core failed on its GroupScored with ZeroDivisionError")
    assert (tmp_path / "run.db").exists() == (durability == "process")


def test_more_than_three_such_words_end_the_run_as_our_bug_also_over_a_restart(tmp_path, mined):
    run, _ = make_run(tmp_path / "run.db", careless=2)
    run.run(until=lambda: run.store.faults_skipped() == 2)
    run.close()
    again, _ = make_run(tmp_path / "run.db", careless=9)
    with pytest.raises(
        RunError, match="on 3 words of workers before, so no worker is to blame: this is a bug"
    ):
        again.run()
    assert again.store.faults_skipped() == MAX_SKIPPED
    again.close()
    with pytest.raises(RunError, match="The core fails at event"):
        make_run(tmp_path / "run.db")


@pytest.mark.parametrize("error", [ConfigError("staleness.routing is wrong"), MemoryError("no memory")])
def test_what_is_no_workers_fault_is_blamed_on_none(tmp_path, mined, error):
    mined[0] = error
    run, _ = make_run(tmp_path / "run.db", careless=1)
    with pytest.raises(type(error)) as raised:
        run.run()
    assert raised.value is error
    assert run.store.faults_skipped() == 0
    assert not faults_in(run)


def test_an_event_that_nobody_has_said_ends_the_run_as_ever(tmp_path, monkeypatch):
    run, _ = make_run(tmp_path / "run.db")
    run.run(until=lambda: run.events > 40)

    def step(core, now, event):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Core, "step", step)
    with pytest.raises(ZeroDivisionError):
        run.stepper.turn(run.now, [(Tick(), ())])
    assert run.store.faults_skipped() == 0


def test_an_event_on_which_another_release_did_not_fail_is_not_passed_over(tmp_path, monkeypatch):
    run, _ = make_run(tmp_path / "run.db")
    run.run(until=lambda: run.core.state.steps == 2)
    run.close()
    on_scored = Scoring.on_scored

    def scored(self, worker, message):
        assert message.group != 2, "no release but this one says so"
        on_scored(self, worker, message)

    monkeypatch.setattr(Scoring, "on_scored", scored)
    said = (
        "The core of this release fails at event .*GroupScored.* with AssertionError: no release but this one"
    )
    with pytest.raises(
        RunError, match=f"{said}.* that of the release that made the run did not .*run.resume="
    ):
        read_past(tmp_path, config_of(steps=4, is_local=True))


def mined_journal(path: Path) -> int:
    """A journal whose last words kill a controller; returns the number of the one on which it fails."""
    run, _ = make_run(path, careless=1)
    seen: list[int] = []

    def is_on_the_mine() -> bool:
        for place, (event, _) in enumerate(run.inbox):
            if isinstance(event, Received) and getattr(event.message, "rewards", ()) == MINE:
                seen.append(run.stepper.last + 1 + place)
                return True
        return False

    run.run(until=is_on_the_mine)
    for event, frames in run.inbox:  # journalled, and not one of them stepped
        with run.store.transaction():
            run.stepper.write_rest()
            run.stepper._keep(event, frames, set())
            run.store.append_events(run.now, [(event, False)])
    run.store.close()
    return seen[0]


def test_a_journal_that_ends_with_a_word_that_killed_its_controller_goes_on_without_it(tmp_path, mined):
    number = mined_journal(tmp_path / "run.db")
    past = read_past(tmp_path, config_of(steps=4, is_local=True))
    assert past is not None
    assert list(past.skipped) == [number]
    again, disk = make_run(tmp_path / "run.db")
    again.run()
    check_the_end(again, disk, skipped=1)
    again.close()
    later = read_past(tmp_path, config_of(steps=5, is_local=True))
    assert later is not None
    assert not later.skipped  # it was written down


def test_who_reads_the_history_passes_over_the_word_and_says_so(tmp_path, mined):
    number = mined_journal(tmp_path / "run.db")
    again, _ = make_run(tmp_path / "run.db")
    again.run()
    again.close()
    with Recording(tmp_path / "run.db") as recording:
        heard = list(recording.events())
        assert number not in [recorded.number for recorded in heard]
        words = verdict_in_words(replay(recording), recording)
        compared = sum(recorded.fingerprint is not None for recorded in heard)
        assert f"Every command of {compared} events was re-derived bit for bit." in words
        assert f"Event {number} was passed over when it came" in words
    with Recording(tmp_path / "run.db") as recording:
        assert len(list(trace(recording))) > 10
        group = next(g for g in range(8) if any("rewards" in line for line in story(recording, g)))
        assert not any("rewards 3, 4" in line for line in story(recording, group))


def test_of_a_turn_the_words_of_others_count_and_no_more_of_the_author(tmp_path, mined):
    run, _ = make_run(tmp_path / "run.db")
    run.run(until=lambda: any(worker.scoring for worker in run.core.state.registry.text_workers()))
    judge = next(run.core.state.registry.text_workers())
    (group, attempt), *_ = judge.told.scores
    other = next(peer for peer in run.workers if peer != judge.peer)
    before = run.store.last_event
    turn = (
        (other, Beat()),
        (judge.peer, GroupScored(group, attempt, MINE)),
        (judge.peer, Beat()),
        (other, Beat()),
    )
    run.turn([(Received(peer, message), ()) for peer, message in turn])
    recording = Recording.live(run.store)
    assert {number: bool(reason) for number, reason in recording.skipped.items()} == {
        before + 2: True, before + 3: False,
    }  # fmt: skip
    kept = [recorded.event for recorded in recording.events(before)]
    assert kept[:2] == [Received(other, Beat())] * 2
    assert isinstance(kept[2], PeerFaulted)
    assert kept[2].peer == judge.peer


def test_a_door_that_fails_to_look_is_passed_over_like_all_else(tmp_path, monkeypatch):
    run, disk = make_run(tmp_path / "run.db")
    look, first = Plausibility._encoded, []

    def failing(self: Plausibility, told, message):
        first.append(message)
        if message is first[0]:  # for the payload, then for the word, among others and alone
            raise ZeroDivisionError("a bug")
        return look(self, told, message)

    monkeypatch.setattr(Plausibility, "_encoded", failing)
    run.run()
    assert run.store.faults_skipped() == 1
    assert run.end is not None
    assert run.end.is_success
    assert trained_groups(disk) == list(range(8))


def test_without_a_journal_on_disk_memory_holds_two_snapshots_and_what_follows(tmp_path, mined, monkeypatch):
    monkeypatch.setattr(snapshots, "EVENTS", 40)
    run, disk = make_run(tmp_path / "run.db", careless=1, durability="off")
    taken = Snapshots(run.store, is_compact=True)
    kept: list[int] = []

    def turn(stepper: Stepper, now: float, batch):
        wanted = stepped(stepper, now, batch)
        if taken.is_due(events=len(batch), journal_bytes=0, now=now):
            with run.store.transaction():
                stepper.write_rest()
                taken.take(stepper.core, number=stepper.last, now=now)
            taken._not_before = 0.0
        kept.append(run.store.database.execute("SELECT count(*) FROM events").fetchone()[0])
        return wanted

    stepped = Stepper.turn
    monkeypatch.setattr(Stepper, "turn", turn)
    run.run()
    assert run.end is not None
    assert run.end.is_success
    assert trained_groups(disk) == list(range(8))
    assert run.store.faults_skipped() == 1
    assert max(kept) < 2 * 40 + 20
    assert run.store.last_event > 60


def test_samples_have_what_the_trainer_computed_though_another_word_of_the_turn_is_passed_over(
    tmp_path, monkeypatch
):
    run, _ = make_run(tmp_path / "run.db")
    run.run(until=lambda: any(is_step_finished(event) for event, _ in run.inbox))
    (finished,) = [item for item in run.inbox if is_step_finished(item[0])]
    run.inbox.remove(finished)
    (judge,) = [peer for peer, worker in run.workers.items() if worker.role == "reward"]
    absorb = Core._absorb

    def absorbed(core, event):
        absorb(core, event)
        if event == Received(judge, Beat()):
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Core, "_absorb", absorbed)
    run.turn([(Received(judge, Beat()), ()), finished])
    assert run.store.faults_skipped() == 1
    with run.store.transaction():
        run.stepper.write_rest()
    recording = Recording.live(run.store)
    samples = [recording.sample(*key) for key in recording.sample_keys()]
    assert samples
    assert all(sample.trained and sample.weights for sample in samples)


def is_step_finished(event) -> bool:
    return isinstance(event, Received) and isinstance(event.message, messages.TrainStepFinished)
