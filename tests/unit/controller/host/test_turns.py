"""Reports that come together: one decision for them, an exact history, and blame for nobody else."""

import pytest

from controller.core.core import Core
from controller.core.events import Received, Tick
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host.resumed_run import derive
from protocol.messages import Beat, GroupScored
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest


def make_run(path) -> ScriptedRun:
    config = config_of(steps=4, is_local=True)
    return ScriptedRun(path, config, honest(config, Disk()))


@pytest.fixture
def decided(monkeypatch):
    """How often the core has decided."""
    found, decide = [0], Core._decide

    def _decide(core):
        found[0] += 1
        return decide(core)

    monkeypatch.setattr(Core, "_decide", _decide)
    return found


def begun(path) -> ScriptedRun:
    run = make_run(path)
    run.run(until=lambda: any(i.running for i in run.core.state.registry.instances()))
    return run


def beats(run: ScriptedRun, count: int) -> list:
    peer = next(iter(run.workers))
    return [(Received(peer, Beat()), ()) for _ in range(count)]


def test_one_decision_is_made_after_many_reports_and_the_journal_says_where(tmp_path, decided):
    run = begun(tmp_path / "run.db")
    before, first = decided[0], run.stepper.last + 1
    run.turn(beats(run, 5))
    assert decided[0] == before + 1
    joined = [recorded.is_joined for recorded in Recording.live(run.store).events(after=first - 1)]
    assert joined == [True, True, True, True, False]
    assert not run.core.is_undecided


def test_what_is_no_report_is_decided_upon_at_once(tmp_path, decided):
    run = begun(tmp_path / "run.db")
    before = decided[0]
    run.turn([*beats(run, 2), (Tick(), ()), *beats(run, 2)])
    assert decided[0] == before + 2


def test_a_run_of_such_turns_replays_command_by_command_and_can_be_cut_anywhere(tmp_path):
    run = make_run(tmp_path / "run.db")
    run.run()
    assert run.end is not None
    with run.store.transaction():
        run.stepper.write_rest()
    recording = Recording.live(run.store)
    assert sum(recorded.is_joined for recorded in recording.events()) > 20
    assert replay(recording).is_equal
    undecided = next(r.number for r in recording.events() if r.is_joined)
    core = derive(recording, until=undecided).core
    assert core.is_undecided
    assert core.next_deadline() == core.state.now  # whoever goes on from there decides at once


def test_events_decided_one_by_one_would_not_replay_as_joined_ones(tmp_path):
    run = make_run(tmp_path / "run.db")
    run.run()
    with run.store.transaction():
        run.stepper.write_rest()
        run.store.separate(1, run.stepper.last)
    assert not replay(Recording.live(run.store)).is_equal


def test_only_the_author_of_the_word_that_fails_is_closed(tmp_path, monkeypatch):
    """The decision fails because of a word in the middle of a turn, behind which others speak."""
    run = begun(tmp_path / "run.db")
    decide, word = Core._decide, GroupScored(0, 77, (), ())
    liar, other = list(run.workers)[:2]
    taken: list[Core] = []

    def absorb(core, event, absorb=Core._absorb):
        if isinstance(event, Received) and event.message == word:
            taken.append(core)
            return
        absorb(core, event)

    def _decide(core):
        if core in taken:
            raise ZeroDivisionError("a bug")
        return decide(core)

    monkeypatch.setattr(Core, "_absorb", absorb)
    monkeypatch.setattr(Core, "_decide", _decide)
    says = [(Received(other, Beat()), ()), (Received(liar, word), ()), (Received(other, Beat()), ())]
    run.stepper.turn(run.now + 0.01, says)
    assert run.store.faults_skipped() == 1
    (skipped,) = run.store.database.execute("SELECT seq FROM skipped WHERE reason <> ''").fetchone()
    assert skipped == run.stepper.last - 2  # the liar's word, before the other's beat and its own fault
    peers = run.core.state.registry.workers
    assert other in peers
    assert liar not in peers
    assert [r.is_joined for r in Recording.live(run.store).events(after=skipped - 2)] == [False] * 3
