"""A trace as TrackEvents, read back by a decoder that knows the wire format alone."""

import io
import struct
import zlib
from collections import defaultdict

import pytest

from controller.cli.main import main
from controller.durability.recording import Recording
from controller.history import track_events
from controller.history.trace import trace
from controller.history.track_events import write_track_events
from tests.support.answered_run import AnsweredRun


def fields(data):
    """Fields of a protobuf message, by number."""
    found, at = defaultdict(list), 0

    def varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                value = varint()
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                size = varint()
                value, at = data[at : at + size], at + size
        found[key >> 3].append(value)
    return found


class Read:
    """Slices and counters of a file, by the names of their tracks."""

    @staticmethod
    def inflated(data):
        """All packets in order; none is in the file but in a deflated one."""
        for packet in map(fields, fields(data)[1]):
            assert list(packet) == [50]
            yield from fields(zlib.decompress(packet[50][0]))[1]

    def __init__(self, data):
        self.data = data
        self.tracks, self.slices, self.counters = {}, [], defaultdict(list)
        names, running = defaultdict(dict), {}
        for packet in map(fields, self.inflated(data)):
            for interned in map(fields, packet[12]):
                for kind, entries in interned.items():
                    for entry in map(fields, entries):
                        names[kind][entry[1][0]] = entry[2][0].decode()
            for track in map(fields, packet[60]):
                parent = self.tracks.get(track[5][0], "?") + "/" if track[5] else ""
                self.tracks[track[1][0]] = parent + track[2][0].decode()
            for event in map(fields, packet[11]):
                (at,), (uuid,), (kind,) = packet[8], event[11], event[9]
                if kind == 1:
                    assert uuid not in running, f"{self.tracks[uuid]} overlaps at {at}"
                    running[uuid] = {
                        "track": self.tracks[uuid], "name": event[23][0].decode(), "begin": at,
                        "kind": names[1][event[3][0]], "out": event[47], "in": event[48],
                    }  # fmt: skip
                elif kind == 2:
                    slice = running.pop(uuid)
                    slice |= {"end": at, "args": {names[3][a[1][0]]: a for a in map(fields, event[4])}}
                    slice["texts"] = {
                        name: names[29][a[17][0]] if a[17] else a[6][0].decode() if a[6] else None
                        for name, a in slice["args"].items()
                    }
                    self.slices.append(slice)
                elif kind == 4:
                    value = event[30][0] if event[30] else struct.unpack("<d", event[44][0])[0]
                    self.counters[self.tracks[uuid]].append((at, value))
        assert not running


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    AnsweredRun(folder / "run.db", steps=4).to_the_end()
    return folder


def written(run, **words):
    file = io.BytesIO()
    with Recording(run) as recording:
        count = write_track_events(trace(recording, **words), file)
    found = Read(file.getvalue())
    assert len(found.slices) == count
    return found


def entries_of(run):
    with Recording(run) as recording:
        return list(trace(recording))


def test_all_slices_of_the_json_are_there_and_none_overlap_on_a_track(run):
    found, entries = written(run), entries_of(run)
    begun = {e["id"]: e for e in entries if e["ph"] == "b"}
    ended = {e["id"]: e for e in entries if e["ph"] == "e"}
    expected = [(e["name"], round(e["ts"] * 1e3), round(ended[id]["ts"] * 1e3)) for id, e in begun.items()]
    expected += [
        (e["name"], round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3))
        for e in entries
        if e["ph"] == "X"
    ]
    assert sorted((s["name"], s["begin"], s["end"]) for s in found.slices) == sorted(expected)
    assert {s["track"].split("/")[0] for s in found.slices} == {
        "rollout-0",
        "rollout-1",
        "reward-0",
        "trainer",
    }
    assert any(s["track"].endswith("/generating 2") for s in found.slices)
    (first, *_), *_ = (s["texts"]["ended"] for s in found.slices if s["kind"] == "route"), ()
    assert first in ("stop", "length", "interrupt")


def test_arrows_lead_from_responses_to_scores_to_batches_to_versions(run):
    found = written(run)
    by_kind = defaultdict(list)
    for slice in found.slices:
        by_kind[slice["kind"]].append(slice)
    responses = {flow for route in by_kind["route"] for flow in route["out"]}
    scored = [flow for score in by_kind["score"] for flow in score["in"]]
    assert set(scored) <= responses
    assert len(set(scored)) == len(scored)
    groups = {flow for score in by_kind["score"] for flow in score["out"]}
    assert all(set(train["in"]) <= groups and train["in"] for train in by_kind["train"])
    versions = {flow for train in by_kind["train"] for flow in train["out"]}
    assert any(set(pull["out"]) <= versions for pull in by_kind["pull"])


def test_counters_are_tracks_of_numbers(run):
    found, entries = written(run), entries_of(run)
    occupied = [e["args"]["occupied"] for e in entries if e["ph"] == "C" and e["name"] == "groups"]
    assert [value for _, value in found.counters["groups/occupied"]] == occupied
    assert len(found.counters["staleness/mean"]) == 4


def test_a_span_has_what_goes_on_in_it_whole_and_workers_are_chosen(run):
    every = written(run)
    middle = sorted(s["begin"] for s in every.slices)[len(every.slices) // 2]
    later = written(run, begin_s=middle / 1e9 + 1e-9)
    expected = [s for s in every.slices if s["end"] > middle]
    assert sorted((s["name"], s["begin"], s["end"]) for s in later.slices) == sorted(
        (s["name"], s["begin"], s["end"]) for s in expected
    )
    earlier = written(run, end_s=middle / 1e9)
    assert max(s["end"] for s in earlier.slices) <= middle + 1
    assert any(s["texts"].get("ended") == "the span ends" for s in earlier.slices)
    trainer = written(run, workers=["trainer"])
    assert {s["track"].split("/")[0] for s in trainer.slices} == {"trainer"}


def test_the_command_writes_it_and_says_when_nothing_is_in_it(run, tmp_path, capsys):
    file = tmp_path / "run.pftrace"
    assert main(["trace", str(run), "-o", str(file)]) == 0
    assert f"{len(Read(file.read_bytes()).slices)} slices are in {file}" in capsys.readouterr().out
    assert main(["trace", str(run), "-o", str(file), "--workers", "nobody"]) == 2
    assert "was ever called nobody" in capsys.readouterr().err


def test_packets_are_deflated_in_pieces_that_make_the_same_trace(run, monkeypatch):
    whole = written(run).data
    monkeypatch.setattr(track_events, "AT_ONCE", 500)
    pieces = written(run).data
    assert len(fields(pieces)[1]) > 2 * len(fields(whole)[1])
    assert [*Read.inflated(pieces)] == [*Read.inflated(whole)]
    assert len(whole) < 0.5 * sum(map(len, Read.inflated(whole)))
