"""Splits a batch: into mini-batches by group, micro-batches by token budget, and shares of ranks by work.

Invariants: every sequence is in exactly one micro-batch of one rank; a micro-batch is within the token budget
unless it is a single longer sequence; all ranks get the same number of micro-batches (FSDP's collectives must
pair up), some of them empty if need be; the plan is a pure function of the lengths, so every rank computes
the same one.

Source: AReaL (arXiv 2505.24298), dynamic micro-batching: longest first, a least number of micro-batches. It
puts a sequence into the fitting micro-batch with the fewest sequences, which spreads them; here work is
spread, over as many as best fit needs, which is as few (`benchmarks/packing.py`).
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

MicroBatch = list[int]
"""Indices of sequences."""


def split_by_group(groups: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of the sequences of each mini-batch: `parts` runs of whole groups, in order, none empty.

    `groups` names the group of each sequence; siblings stand together. Fewer groups than parts give fewer
    mini-batches.
    """
    starts = [place for place, group in enumerate(groups) if place == 0 or groups[place - 1] != group]
    parts = min(parts, len(starts))
    bounds = [starts[len(starts) * part // parts] for part in range(parts)] + [len(groups)]
    return [list(range(begin, end)) for begin, end in pairwise(bounds)]


def pack(
    lengths: Sequence[int], *, max_tokens: int, at_least: int = 1, half_attention: float = math.inf
) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` tokens with work spread evenly.

    At least `at_least` micro-batches, if there are enough sequences. `half_attention`: the length at which
    attention takes as long as the rest of a sequence's pass.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    tight = _best_fit(lengths, order, max_tokens)
    count = min(max(at_least, len(tight)), len(lengths))
    work = [length * (1 + length / half_attention) for length in lengths]
    return _spread(lengths, order, max_tokens, count=count, work=work) or tight


def plan(
    lengths: Sequence[int], *, ranks: int, max_tokens: int, half_attention: float = math.inf
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, equally many for every rank; an empty one is a pass without loss.

    Ranks wait for each other in every layer, so the micro-batches of one round have similar work.
    """
    count = 0
    packed: list[MicroBatch] = [[]]
    while len(packed) > count:  # a multiple of the ranks, so that the last round is shared by all
        count = -(-len(packed) // ranks) * ranks
        packed = pack(lengths, max_tokens=max_tokens, at_least=count, half_attention=half_attention)

    def work(batch: MicroBatch) -> float:
        return sum(lengths[index] * (1 + lengths[index] / half_attention) for index in batch)

    packed = sorted(packed, key=work, reverse=True) + [[] for _ in range(count - len(packed))]
    rounds = [packed[start : start + ranks] for start in range(0, count, ranks)]
    rounds = [some[::-1] if number % 2 else some for number, some in enumerate(rounds)]
    return [[some[rank] for some in rounds] for rank in range(ranks)]


def plan_padded(lengths: Sequence[int], *, ranks: int, max_tokens: int) -> list[list[MicroBatch]]:
    """Like `plan`, for micro-batches whose sequences are padded to the longest of them.

    Sequences of similar length go together, and the budget counts padding.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[MicroBatch] = []
    room = 0  # sequences that the last micro-batch has room for
    for index in order:
        if not room:
            batches.append([])
            room = max(1, max_tokens // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    count = -(-len(batches) // ranks)
    batches += [[] for _ in range(count * ranks - len(batches))]
    return [batches[rank::ranks] for rank in range(ranks)]


def _best_fit(lengths: Sequence[int], order: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """Best fit: each sequence, longest first, into the micro-batch with the least room that fits it."""
    batches: list[MicroBatch] = []
    rooms: list[tuple[int, int]] = []  # tokens left and number of each micro-batch with room, ascending
    for index in order:
        place = bisect_left(rooms, (lengths[index], 0))
        room, number = rooms.pop(place) if place < len(rooms) else (max_tokens, len(batches))
        if number == len(batches):
            batches.append([])
        batches[number].append(index)
        if room > lengths[index]:
            insort(rooms, (room - lengths[index], number))
    return batches


def _spread(
    lengths: Sequence[int], order: Sequence[int], max_tokens: int, *, count: int, work: Sequence[float]
) -> list[MicroBatch] | None:
    """Put each sequence, longest first, into the fitting micro-batch of `count` with the least work.

    None if a sequence does not fit.
    """
    batches: list[MicroBatch] = [[] for _ in range(count)]
    tokens = [0] * count
    least = [(0.0, number) for number in range(count)]
    for index in order:
        full = []
        while least and tokens[least[0][1]] and tokens[least[0][1]] + lengths[index] > max_tokens:
            full.append(heapq.heappop(least))
        if not least:
            return None
        done, number = least[0]
        batches[number].append(index)
        tokens[number] += lengths[index]
        heapq.heapreplace(least, (done + work[index], number))
        for entry in full:
            heapq.heappush(least, entry)
    return batches
