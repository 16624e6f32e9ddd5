"""Which sequences go together: mini-batches by group, ranks by work, micro-batches by token budget.

Invariants: every sequence is in exactly one micro-batch of one rank; a micro-batch is within the token budget
unless it is a single longer sequence; all ranks get the same number of micro-batches (FSDP's collectives must
pair up), some of them empty if need be; the plan is a pure function of the lengths, so every rank computes
the same one.
"""

import heapq
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


def pack(lengths: Sequence[int], *, max_tokens: int, at_least: int = 1) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` tokens; `at_least` of them if there are enough sequences.

    Source: AReaL (arXiv 2505.24298), dynamic micro-batching: longest first, into the micro-batch with the
    fewest sequences among those where it fits.
    """
    batches: list[MicroBatch] = []
    tokens: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [place for place in range(len(batches)) if tokens[place] + lengths[index] <= max_tokens]
        if len(batches) < at_least or not fitting:
            batches.append([index])
            tokens.append(lengths[index])
        else:
            place = min(fitting, key=lambda place: len(batches[place]))
            batches[place].append(index)
            tokens[place] += lengths[index]
    return batches


def balance(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of the sequences of each rank: longest first, to the rank with the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        tokens, rank = heapq.heappop(load)
        shares[rank].append(index)
        heapq.heappush(load, (tokens + lengths[index], rank))
    return shares


def plan(lengths: Sequence[int], *, ranks: int, max_tokens: int) -> list[list[MicroBatch]]:
    """For each rank its micro-batches, as many for every rank; an empty one means a pass without loss."""

    def pack_share(share: list[int], at_least: int) -> list[MicroBatch]:
        packed = pack([lengths[index] for index in share], max_tokens=max_tokens, at_least=at_least)
        return [[share[place] for place in batch] for batch in packed]

    shares = balance(lengths, ranks)
    count = max(len(pack_share(share, 1)) for share in shares)
    packed = [pack_share(share, count) for share in shares]
    count = max(map(len, packed))
    return [batches + [[] for _ in range(count - len(batches))] for batches in packed]
