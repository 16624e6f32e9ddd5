"""Lies that a worker can tell in well-formed words, for each role: at least forty."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

from protocol import messages
from protocol.messages import Delta, Generated, Message, Role, Route
from tests.support.lying import (
    AGAIN,
    DRAIN,
    EVALUATION,
    FAR,
    FINISHED,
    PUBLISHED,
    READY,
    SCORED,
    Lie,
    Tell,
    behind,
    change,
    generated,
    instead,
    status,
    twice,
)
from tests.support.scripted import VOCABULARY, Frames, Said, Scripted, ScriptedRollout, ScriptedTrainer, ints

# -- rollout workers -------------------------------------------------------------------------------------


def delta(order: Message | None, worker: Scripted, **fields: object) -> Delta:
    """Two tokens that answer a route, with other fields."""
    assert isinstance(order, Route)
    assert isinstance(worker, ScriptedRollout)
    one = Delta(order.group, order.member, order.attempt, 0, 2, worker.version, "")
    return one._replace(**fields)  # type: ignore[arg-type]


def tells(*changes: dict[str, object], **frames: object) -> Tell:
    """At the first route: one delta for each change."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        deltas = [delta(order, worker, **fields) for fields in changes]
        return [generated(*deltas, **frames)]  # type: ignore[arg-type]

    return tell


def moved(**by: int) -> Tell:
    """At the first route: its answer, with fields that are off by so much."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        one = delta(order, worker)
        return [generated(one._replace(**{name: getattr(one, name) + off for name, off in by.items()}))]

    return tell


def reported(**fields: object) -> Tell:
    """The second report of the load with other fields."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        if not said or not isinstance(said[-1][0], messages.InstanceStatus) or said[-1][0].sequence < 2:
            return None
        return [*said[:-1], (replace(said[-1][0], **fields), ())]  # type: ignore[arg-type]

    return tell


def _of_another(worker: Scripted, order: Message | None, said: Said) -> Said | None:
    """The answer to the route that another instance was given: its sibling in the group."""
    assert isinstance(order, Route)
    other = delta(order, worker, member=1 - order.member)
    assert isinstance(worker, ScriptedRollout)
    return None if other[:3] in worker.running else [generated(other)]


def _hands_back(worker: Scripted, order: Message | None, said: Said) -> Said | None:
    assert isinstance(worker, ScriptedRollout)
    if len(worker.running) < 2:
        return None
    first, second = list(worker.running)[:2]
    version = worker.version
    return [generated(Delta(*key, 0, 0, version, "interrupt")) for key in (first, second)]


def _tells_of_what_has_ended(worker: Scripted, order: Message | None, said: Said) -> Said | None:
    for message, _ in said:
        if isinstance(message, Generated) and (ended := [one for one in message.deltas if one.ending]):
            last = ended[0]
            more = last._replace(start=last.start + last.count, count=1, ending="")
            return [*said, generated(more)]
    return None


def _failed(group: int = 0, member: int = 0, attempt: int = 0) -> Message:
    return messages.GenerationFailed(group, member, attempt, "it cannot go on")


ROLLOUT: dict[str, tuple[type[Message] | str, Tell]] = {
    "a version from the future, to its end": (Route, tells({"policy_version": 10**6, "ending": "stop"})),
    "the last of all versions, and hands back": (
        Route, tells({"policy_version": 2**31 - 1, "ending": "interrupt"}),
    ),
    "the version after its own": (Route, moved(policy_version=1)),
    "more tokens than are allowed": (Route, tells({"count": 11})),
    "a hundred thousand tokens": (Route, tells({"count": 100_000})),
    "tokens from the second on": (Route, tells({"start": 1})),
    "tokens from far behind": (Route, tells({"start": FAR})),
    "a group that nobody has read": (Route, moved(group=10_000)),
    "a group as large as numbers get": (Route, tells({"group": FAR})),
    "a held-out group": (Route, tells({"group": EVALUATION})),
    "a member that the group has not": (Route, tells({"member": 2})),
    "a member as large as numbers get": (Route, tells({"member": FAR})),
    "the attempt after its own": (Route, moved(attempt=1)),
    "the attempt before its own": (Route, moved(attempt=-1)),
    "an attempt as large as numbers get": (Route, tells({"attempt": FAR})),
    "the response of another instance": (Route, _of_another),
    "two ends in one report": (Route, tells({"ending": "stop"}, {"start": 2, "ending": "stop"})),
    "the same tokens twice in one report": (Route, tells({}, {})),
    "tokens behind the end": ("work", _tells_of_what_has_ended),
    "nothing of what it was given": (Route, tells({"count": 0})),
    "an end without a token": (Route, tells({"count": 0, "ending": "stop"})),
    "an end by length without a token": (Route, tells({"count": 0, "ending": "length"})),
    "hands back again and again": ("work", _hands_back),
    "a negative token": (Route, tells({}, token=-1)),
    "a token behind the vocabulary": (Route, tells({}, token=VOCABULARY)),
    "a token as large as numbers get": (Route, tells({}, token=2**31 - 1)),
    "a logprob that is no number": (Route, tells({}, logprob=nan)),
    "a logprob without end": (Route, tells({}, logprob=-inf)),
    "a probability over 1": (Route, tells({}, logprob=0.5)),
    "fails what it was not given": (Route, lambda w, o, s: [(_failed(10_000), ())]),
    "fails an attempt to come": (
        Route, lambda w, o, s: [(_failed(o.group, o.member, o.attempt + 1), ())],  # type: ignore[union-attr]
    ),
    "fails the same attempt twice": (
        Route, lambda w, o, s: [(_failed(o.group, o.member, o.attempt), ())] * 2,  # type: ignore[union-attr]
    ),
    "pulled what it was not told": (Route, lambda w, o, s: [(messages.Pulled(0, "d0", 0.1), ())]),
    "pulled another version": (messages.Pull, change(policy_version=7)),
    "pulled with another checksum": (messages.Pull, change(digest="d7")),
    "pulled twice": (messages.Pull, twice),
    "pulled in less than no time": (messages.Pull, change(pull_s=-1e308)),
    "pulled for years": (messages.Pull, change(pull_s=1e8)),
    "refused more chunks than there are": (messages.Pull, change(refused=FAR)),
    "could not pull another version": (
        messages.Pull, instead(lambda m: messages.PullFailed(7, "it is not there")),
    ),
    "could not pull what it was not told": (
        Route, lambda w, o, s: [(messages.PullFailed(0, "it is not there"), ())],
    ),
    "is ready twice": ("begin", behind(READY)),
    "has no room": ("begin", change(capacity=0)),
    "has room for all": ("begin", change(capacity=FAR)),
    "has no memory": ("begin", change(kv_tokens=0)),
    "has all memory": ("begin", change(kv_tokens=FAR)),
    "holds something after it was ready": ("begin", behind(messages.Holding(("aa",), 0, ()))),
    "holds something twice": (
        "begin", lambda w, o, s: [(messages.Holding(("aa",), 0, ((0, 0, 1, 0),)), ())] * 2,
    ),
    "serves where nobody asked": ("begin", behind(messages.Serving("tcp://10.0.0.1:5000"))),
    "serves nowhere": ("begin", behind(messages.Serving("bogus"))),
    "serves on an empty place": ("begin", behind(messages.Serving("tcp://"))),
    "serves inside its process": ("begin", behind(messages.Serving("inproc://a"))),
    "serves without a port": ("begin", behind(messages.Serving("tcp://10.0.0.1"))),
    "serves on port 70000": ("begin", behind(messages.Serving("tcp://10.0.0.1:70000"))),
    "reports another version": ("work", reported(policy_version=99)),
    "reports a counter that went back": ("work", reported(decode_tokens=0)),
    "reports a time that went back": ("work", reported(decode_s=0.0)),
    "reports years between two reports": ("work", reported(decode_s=1e8)),
    "reports the same report again": ("work", reported(sequence=1)),
    "reports more than any engine runs": ("work", reported(running=FAR)),
    "reports more than any engine holds": ("work", reported(resident_tokens=FAR)),
    "reports what it was not given as waiting": ("work", reported(queued=((10_000, 0, 1),))),
    "reports its load before it is ready": ("begin", lambda w, o, s: [(status(), ()), *s]),
    "reports a time that is no number": ("work", reported(decode_s=nan)),
    "speaks as a trainer": ("begin", behind(FINISHED)),
    "publishes": ("begin", behind(PUBLISHED)),
    "speaks as a reward worker": ("begin", behind(SCORED)),
    "drains another worker": ("begin", behind(DRAIN)),
    "attaches again": ("begin", behind(AGAIN)),
}  # fmt: skip


# -- reward workers --------------------------------------------------------------------------------------


def encodes(make: Callable[[tuple[int, ...]], tuple[Message, Frames]]) -> Tell:
    """Another answer to Encode, from the groups that were asked for."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        assert isinstance(order, messages.Encode)
        return [make(order.groups)]

    return tell


def _encoded(groups: tuple[int, ...], *, count: int = 3, token: int = 1) -> tuple[Message, Frames]:
    frames = tuple(ints(*[token] * count) for _ in groups)
    return messages.PromptsEncoded(tuple((group, count) for group in groups), ()), frames


def _examples(groups: tuple[int, ...]) -> tuple[Message, Frames]:
    encoded = messages.ExamplesEncoded(tuple((group, 3, 1) for group in groups), ())
    return encoded, tuple(ints(1, 1, 1, 1) for _ in groups)


def _refused(groups: tuple[int, ...], *, also: tuple[int, ...] = ()) -> tuple[Message, Frames]:
    encoded, frames = _encoded(groups)
    assert isinstance(encoded, messages.PromptsEncoded)
    return replace(encoded, refused=tuple((group, "no") for group in also)), frames


def scores(*rewards: float) -> Tell:
    """These rewards for the first group."""
    return change(rewards=rewards)


ENCODE, SCORE = messages.Encode, messages.Score
REWARD: dict[str, tuple[type[Message] | str, Tell]] = {
    "encodes another group": (ENCODE, encodes(lambda g: _encoded((*g[1:], 10_000)))),
    "encodes a group as large as numbers get": (ENCODE, encodes(lambda g: _encoded((*g[1:], FAR)))),
    "encodes a held-out group": (ENCODE, encodes(lambda g: _encoded((*g[1:], EVALUATION)))),
    "encodes one group less": (ENCODE, encodes(lambda g: _encoded(g[1:]))),
    "encodes one group more": (ENCODE, encodes(lambda g: _encoded((*g, max(g) + 1)))),
    "encodes one group twice": (ENCODE, encodes(lambda g: _encoded((g[0], *g)))),
    "encodes and refuses one group": (ENCODE, encodes(lambda g: _refused(g, also=g[:1]))),
    "encodes nothing": (ENCODE, encodes(lambda g: _encoded(()))),
    "encodes to no tokens": (ENCODE, encodes(lambda g: _encoded(g, count=0))),
    "encodes to one token too many": (ENCODE, encodes(lambda g: _encoded(g, count=9))),
    "encodes to a hundred thousand tokens": (
        ENCODE, encodes(lambda g: (_encoded(g[:1], count=100_000))),
    ),
    "encodes to a negative token": (ENCODE, encodes(lambda g: _encoded(g, token=-1))),
    "encodes to a token behind the vocabulary": (ENCODE, encodes(lambda g: _encoded(g, token=VOCABULARY))),
    "encodes to a token as large as numbers get": (ENCODE, encodes(lambda g: _encoded(g, token=2**31 - 1))),
    "encodes to less than it says": (
        ENCODE, encodes(lambda g: (_encoded(g)[0], tuple(ints(1) for _ in g))),
    ),
    "encodes examples": (ENCODE, encodes(_examples)),
    "encodes twice": (ENCODE, twice),
    "refuses another group": (ENCODE, encodes(lambda g: _refused(g[1:], also=(10_000,)))),
    "refuses with a reason without end": (
        ENCODE, encodes(lambda g: (messages.PromptsEncoded((), ((g[0], "x" * 70_000),)), ())),
    ),
    "encodes before it is asked": ("begin", lambda w, o, s: [_encoded((0,)), *s]),
    "gives too few rewards": (SCORE, scores(1.0)),
    "gives too many rewards": (SCORE, scores(1.0, 0.0, 1.0)),
    "gives no rewards": (SCORE, scores()),
    "gives a thousand rewards": (SCORE, scores(*[1.0] * 1000)),
    "gives the largest rewards": (SCORE, scores(1.7e308, 1.7e308)),
    "gives rewards far apart": (SCORE, scores(1e308, -1e308)),
    "gives rewards whose squares overflow": (SCORE, scores(1e200, -1e200)),
    "gives a reward just beyond the limit": (SCORE, scores(0.0, 1.1e30)),
    "gives a reward that is no number": (SCORE, scores(nan, 1.0)),
    "gives a reward without end": (SCORE, scores(inf, 1.0)),
    "scores another group": (SCORE, change(group=10_000)),
    "scores a group as large as numbers get": (SCORE, change(group=FAR)),
    "scores a held-out group": (SCORE, change(group=EVALUATION)),
    "scores the next attempt": (SCORE, change(attempt=2)),
    "scores attempt 0": (SCORE, change(attempt=0)),
    "scores an attempt as large as numbers get": (SCORE, change(attempt=FAR)),
    "scores twice": (SCORE, twice),
    "scores and fails": (SCORE, lambda w, o, s: [*s, (messages.ScoreFailed(*_asked(o), "no", "{}"), ())]),
    "fails and scores": (SCORE, lambda w, o, s: [(messages.ScoreFailed(*_asked(o), "no", "{}"), ()), *s]),
    "fails another group": (SCORE, instead(lambda m: messages.ScoreFailed(10_000, 1, "no", "{}"))),
    "fails the next attempt": (
        SCORE, lambda w, o, s: [(messages.ScoreFailed(_asked(o)[0], 9, "no", "{}"), ())],
    ),
    "scores before it is asked": ("begin", lambda w, o, s: [*s, (SCORED, ())]),
    "fails before it is asked": ("begin", behind(messages.ScoreFailed(0, 1, "no", "{}"))),
    "is ready twice": ("begin", behind(messages.Ready(0, 0, 0))),
    "has room for all": ("begin", change(capacity=FAR)),
    "has room for tokens": ("begin", change(kv_tokens=FAR)),
    "generates": ("begin", lambda w, o, s: [*s, generated(Delta(0, 0, 1, 0, 1, 0, ""))]),
    "speaks as a trainer": ("begin", behind(FINISHED)),
    "publishes": ("begin", behind(PUBLISHED)),
    "saves": ("begin", behind(messages.CheckpointSaved(0, "/checkpoints/step_0"))),
    "pulls": ("begin", behind(messages.Pulled(0, "d0", 0.1))),
    "holds something": ("begin", behind(messages.Holding(("aa",), 0, ()))),
    "serves": ("begin", behind(messages.Serving("tcp://10.0.0.1:5000"))),
    "reports a load": ("begin", behind(status())),
    "drains another worker": ("begin", behind(DRAIN)),
    "attaches again": ("begin", behind(AGAIN)),
}  # fmt: skip


def _asked(order: Message | None) -> tuple[int, int]:
    assert isinstance(order, messages.Score)
    return order.group, order.attempt


# -- trainers --------------------------------------------------------------------------------------------

TRAIN, SAVE = messages.Train, messages.SaveCheckpoint


def publishes(**fields: object) -> Tell:
    """The version of a step is published with other fields."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        return [*said[:-1], (replace(said[-1][0], **fields), ())]  # type: ignore[type-var]

    return tell


def _metrics(*metrics: tuple[str, float]) -> Tell:
    return change(metrics=metrics)


def _found(versions: int) -> Tell:
    found = [(messages.PolicyPublished(100 + n, f"/v{n}", "d", 1, 0.0), ()) for n in range(versions)]
    return lambda worker, order, said: [*found, *said]


def _saved_twice(worker: Scripted, order: Message | None, said: Said) -> Said | None:
    assert isinstance(worker, ScriptedTrainer)
    return [*said, *said]


TRAINER: dict[str, tuple[type[Message] | str, Tell]] = {
    "makes the version after the next": (TRAIN, change(policy_version=2)),
    "makes the version that it had": (TRAIN, change(policy_version=0)),
    "makes the last of all versions": (TRAIN, change(policy_version=2**31 - 1)),
    "makes a version twice": (TRAIN, twice),
    "makes a version unasked": ("begin", behind(FINISHED)),
    "trains in less than no time": (TRAIN, change(train_s=-1.0)),
    "trains for years": (TRAIN, change(train_s=1e8)),
    "trains for a time that is no number": (TRAIN, change(train_s=nan)),
    "reports a metric that is no number": (TRAIN, _metrics(("loss", nan))),
    "reports a metric without end": (TRAIN, _metrics(("loss", -inf))),
    "reports a metric without a name": (TRAIN, _metrics(("", 1.0))),
    "reports a metric that clears the screen": (TRAIN, _metrics(("\x1b[2J", 1.0))),
    "reports a metric on two lines": (TRAIN, _metrics(("loss\nreward", 1.0))),
    "reports a metric with a name without end": (TRAIN, _metrics(("x" * 300, 1.0))),
    "reports ten thousand metrics": (TRAIN, _metrics(*((f"m{n}", 1.0) for n in range(10_000)))),
    "publishes the last of all versions": (TRAIN, publishes(policy_version=2**31 - 1)),
    "publishes the version after its own": (TRAIN, publishes(policy_version=2)),
    "publishes a version from the future": (TRAIN, publishes(policy_version=10**6)),
    "publishes the version before its own": (TRAIN, publishes(policy_version=0)),
    "publishes twice": (TRAIN, lambda w, o, s: [*s, s[-1]]),
    "publishes what it has begun with twice": ("begin", lambda w, o, s: [*s, s[-1]]),
    "publishes in less than no time": (TRAIN, publishes(publish_s=-1e308)),
    "publishes for years": (TRAIN, publishes(publish_s=1e8)),
    "publishes for a time that is no number": (TRAIN, publishes(publish_s=nan)),
    "publishes nowhere": (TRAIN, publishes(location="")),
    "publishes at a place that clears the screen": (TRAIN, publishes(location="/v\x1b[2J")),
    "publishes at a place without end": (TRAIN, publishes(location="/" + "v" * 5000)),
    "publishes with a checksum on two lines": (TRAIN, publishes(digest="d\n1")),
    "publishes with no checksum": (TRAIN, publishes(digest="")),
    "publishes more than there is": (TRAIN, publishes(size_bytes=2**60)),
    "publishes a negative version": (TRAIN, publishes(policy_version=-1)),
    "publishes the next version before its batch": ("begin", behind(PUBLISHED)),
    "finds a thousand versions": ("begin", _found(1001)),
    "saves unasked": ("begin", behind(messages.CheckpointSaved(0, "/checkpoints/step_0"))),
    "saves another version": (SAVE, change(policy_version=1)),
    "saves the last of all versions": (SAVE, change(policy_version=2**31 - 1)),
    "saves twice": (SAVE, _saved_twice),
    "saves at a place that clears the screen": (SAVE, change(path="/c\x1b[2J")),
    "trains ahead unasked": (TRAIN, lambda w, o, s: [(messages.TrainedAhead(0), ()), *s]),
    "is ready twice": ("begin", behind(messages.Ready(0, 0, 0))),
    "has room for trajectories": ("begin", change(capacity=4)),
    "has room for tokens": ("begin", change(kv_tokens=4)),
    "begins at a version to come": ("begin", change(policy_version=999)),
    "begins at the last of all versions": ("begin", change(policy_version=2**31 - 1)),
    "serves where nobody asked": ("begin", behind(messages.Serving("tcp://10.0.0.1:5000"))),
    "serves nowhere": ("begin", behind(messages.Serving("bogus"))),
    "generates": ("begin", lambda w, o, s: [*s, generated(Delta(0, 0, 1, 0, 1, 0, ""))]),
    "scores": ("begin", behind(SCORED)),
    "encodes": ("begin", lambda w, o, s: [*s, _encoded((0,))]),
    "pulls": ("begin", behind(messages.Pulled(0, "d0", 0.1))),
    "reports a load": ("begin", behind(status())),
    "holds something": ("begin", behind(messages.Holding(("aa",), 0, ()))),
    "drains a worker": ("begin", behind(DRAIN)),
    "attaches again": ("begin", behind(AGAIN)),
}  # fmt: skip

_ALL: dict[Role, dict[str, tuple[type[Message] | str, Tell]]] = {
    "rollout": ROLLOUT, "reward": REWARD, "trainer": TRAINER,
}  # fmt: skip
LIES: list[Lie] = [
    Lie(name, role, on, tell) for role, lies in _ALL.items() for name, (on, tell) in lies.items()
]
