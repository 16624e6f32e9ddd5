"""Kept sets on their way out of a rollout worker: reported, kept in hand, handed over, refused as lies."""

import numpy as np
import pytest

from protocol.errors import ConfigError, RemoteError
from protocol.kept_sets import EVERYTHING, KeptSet
from protocol.messages import Delta, Generated, Keep
from protocol.settings import RolloutSettings, SamplingSettings
from protocol.wire.codec import Packet, check_frames, decode, encode
from workers.engines.interface import Sampled, check_new
from workers.rollout.unacknowledged import Unacknowledged
from workers.rollout.worker import RolloutWorker, _Attempt

FIRST, SECOND = KeptSet.of(np.array([1, 4]), 50), KeptSet.without(np.array([3, 5, 6]))


class Told:
    """A link that remembers."""

    def __init__(self):
        self.words = []

    def send(self, message, *frames):
        self.words.append((message, frames))


class Engine:
    policy_version = 3

    def abort(self, keys):
        pass


def reports(worker_settings, rounds, **sampling):
    """What a worker says of engine steps; each round is (key, kept) pairs, and ends with a report."""
    rollout = RolloutSettings(sampling=SamplingSettings(**sampling))
    worker = RolloutWorker(worker_settings.model_copy(update={"rollout": rollout}), "nowhere")
    worker._link, worker._engine = (told := Told()), Engine()
    for sampled in rounds:
        for key, _ in sampled:
            worker._attempts.setdefault(key, _Attempt(policy_version=3))
        worker._absorb([Sampled(key, 1, -0.5, "", kept) for key, kept in sampled])
        worker._report_progress()
    assert worker._kept_bytes == 0
    return told.words


@pytest.fixture
def worker_settings(tmp_path):
    from tests.support.engine_answers import settings

    return settings(str(tmp_path), dtype="float32", forward="float32")


A, B = (0, 0, 0), (0, 1, 0)


def test_a_report_brings_the_kept_sets_of_its_tokens_in_order(worker_settings):
    [(message, frames)] = reports(
        worker_settings, [[(A, FIRST), (B, EVERYTHING), (A, SECOND), (B, FIRST)]], top_p=0.9
    )
    assert message.kept_words == (5, 2)
    assert np.frombuffer(frames[2], "<i4").tolist() == [2, -3, 0, 2]
    assert frames[3] == FIRST.words + SECOND.words + FIRST.words
    check_frames(message, frames, vocabulary=50)


def test_where_nothing_was_cut_nothing_more_is_said(worker_settings):
    for sampling in ({"top_p": 0.9}, {}):
        [(message, frames)] = reports(worker_settings, [[(A, EVERYTHING)]], **sampling)
        assert message.kept_words == ()
        assert len(frames) == 2


def words():
    message = Generated.of((Delta(0, 0, 1, 0, 2, 3, ""), Delta(0, 1, 1, 4, 1, 3, "stop")), (5, 2))
    sets = [FIRST, SECOND, FIRST]
    frames = (
        np.array([1, 1, 1], "<i4").tobytes(), np.array([-1.0, -2.0, -3.0], "<f4").tobytes(),
        np.array([one.code for one in sets], "<i4").tobytes(), b"".join(one.words for one in sets),
    )  # fmt: skip
    return message, frames


def test_the_next_controller_gets_the_kept_sets_of_what_it_wants(worker_settings):
    unacknowledged = Unacknowledged()
    unacknowledged.cut("first", [words()])
    unacknowledged, _ = Unacknowledged.from_bytes(unacknowledged.to_bytes(3))
    [(message, frames)] = unacknowledged.release(Keep(((0, 1, 1, 4),)))
    assert message == Generated.of((Delta(0, 1, 1, 4, 1, 3, "stop"),), (2,))
    assert frames == (words()[1][0][8:], words()[1][1][8:], words()[1][2][8:], FIRST.words)
    check_frames(message, frames, vocabulary=50)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m, f: (Generated.of(m.deltas, (5,)), f), "frames of"),
        (lambda m, f: (Generated.of(m.deltas, (7,)), f), "of 1 deltas and 2"),
        (lambda m, f: (Generated.of(m.deltas, (2, 5)), f), "of 5 words where its counts say 2"),
        (lambda m, f: (m, (*f[:3], f[3][:-4] + b"\x32\0\0\0")), "from 1 to 50; the model has 50"),
        (lambda m, f: (m, f[:2]), "frames of"),
    ],
)
def test_kept_sets_that_contradict_themselves_are_refused(change, said):
    message, frames = change(*words())
    with pytest.raises(RemoteError, match=said):
        decode(encode(Packet(1, 0, message, frames)), vocabulary=50)


def test_an_engine_that_cannot_tell_what_it_kept_is_refused_with_the_bias():
    engine = Engine()
    engine.capacity, engine.kv_tokens = 1, 1
    check_new(engine, "mine.py:make")
    with pytest.raises(ConfigError, match=r"mine\.py:make does not tell which.*0\.911 at top_p 0\.9"):
        check_new(engine, "mine.py:make", is_cut=True)
