"""Lanes between two seconds of a run, as a page draws them: spans, or bins where there are many.

Invariant: an answer has at most MOST_LANES lanes of MOST_SPANS spans, however large the fleet is.
"""

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from controller.view.past.lane_filter import LaneFacts, LaneFilter, filter_of, speed_of
from controller.view.past.lanes import (
    BESIDE,
    KINDS,
    NUMBERS,
    Lane,
    apart,
    by_role,
    seconds_by_lane,
    seconds_of,
    shares,
)
from controller.view.past.timeline import Timeline
from protocol.errors import RunError

MOST_SPANS = 400  # of one lane in one answer; more are told as bins
BINS = 240
MOST_LANES = 64  # in one answer; beyond it a fleet is told as shares
MOST_VERSIONS = 400
Json = dict[str, Any]


def picture(timeline: Timeline, begin_s: float, end_s: float, *, wanted: str = "") -> Json:
    """Lanes between two seconds of the run, as spans or, where there are many, as bins.

    `wanted`: a filter; of more than MOST_LANES the first are told, and all of them as shares. A filter that
    makes no sense leaves nothing out, and `refused` says so.
    """
    end_s, until_s = max(end_s, begin_s + 1e-6), timeline.until_s
    known_s = min(end_s, until_s)
    lanes, refused = timeline.lanes(), ""
    try:
        if (chosen := filter_of(wanted, KINDS)) != LaneFilter():
            lanes = [lanes[place] for place in chosen.of(facts_of(lanes, begin_s, known_s, until_s))]
    except RunError as error:
        refused = str(error)
    versions = [one for one in timeline.versions if begin_s <= one[0] <= end_s]
    every = -(-len(versions) // MOST_VERSIONS)
    return {
        "kinds": KINDS,
        "beside": BESIDE,
        "begin_s": begin_s,
        "end_s": end_s,
        "known_s": until_s,
        "count": len(lanes),
        "refused": refused,
        "lanes": [_told(lane, begin_s, known_s, until_s) for lane in lanes[:MOST_LANES]],
        "fleet": _fleet(lanes, begin_s, known_s) if len(lanes) > MOST_LANES else None,
        "versions": versions[:: max(1, every)],
        "shares": shares(lanes, begin_s, known_s),
    }


def facts_of(lanes: list[Lane], begin_s: float, end_s: float, until_s: float) -> list[LaneFacts]:
    """What a filter looks at, between two moments; `until_s`: how far the lanes are known."""
    seconds = seconds_by_lane(lanes, begin_s, end_s)
    return [
        LaneFacts(
            lane.name,
            {KINDS[kind]: float(held[kind]) for kind in np.flatnonzero(held > 0)},
            lane.tokens_until(end_s, until_s) - lane.tokens_until(begin_s, until_s),
        )
        for lane, held in zip(lanes, seconds, strict=True)
    ]


def _told(lane: Lane, begin_s: float, end_s: float, until_s: float) -> Json:
    first = max(0, bisect_right(lane.begins, begin_s) - 1)
    last = bisect_left(lane.begins, end_s)
    speed = speed_of(facts_of([lane], begin_s, end_s, until_s)[0])
    found: Json = {"name": lane.name, "role": lane.role, "speed": None if speed is None else round(speed, 2)}
    if last - first > MOST_SPANS:
        seconds = seconds_of([lane], begin_s, end_s, bins=BINS)
        most = seconds.argmax(axis=1)
        share = seconds.max(axis=1) / ((end_s - begin_s) / BINS)
        kinds = np.where(share > 0, most, -1)
        return found | {"bins": kinds.tolist(), "fullness": np.round(share, 2).tolist()}
    begins = [*lane.begins[first:last], end_s]
    spans = [
        (
            round(max(begin_s, begins[place]), 6),
            round(begins[place + 1], 6),
            lane.kinds[first + place],
            apart(lane.details[first + place])[0],
        )
        for place in range(last - first)
    ]
    kept = [place for place, span in enumerate(spans) if span[1] > span[0]]
    loads = [_load(lane, first + place, until_s) for place in kept]
    beside = [apart(lane.details[first + place])[1] for place in kept]
    return found | {"spans": [spans[place] for place in kept], "loads": loads, "beside": beside}


def _load(lane: Lane, place: int, until_s: float) -> float | None:
    """Of a state that generates; None of others."""
    is_generating = lane.kinds[place] == NUMBERS["generating"]
    return round(lane.load_of(place, until_s), 2) if is_generating else None


def _fleet(lanes: list[Lane], begin_s: float, end_s: float) -> Json:
    """By role and bin, how many workers were in each state."""
    width = max((end_s - begin_s) / BINS, 1e-9)
    return {
        role: np.round(seconds_of(members, begin_s, end_s, bins=BINS) / width, 2).tolist()
        for role, members in by_role(lanes).items()
    }
