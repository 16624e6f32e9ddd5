"""Kept samples that are made by hand, and a run that has kept them."""

import json
import sqlite3

import numpy as np

from controller.durability.sample_records import OVERHEAD_BYTES, KeptSample, _checksum


def response(member, tokens, *, reward=0.0, advantage=0.0, ending="stop", versions=None, logprobs=None,
             trained=None):  # fmt: skip
    """One response; its versions are by token, -1 for given ones, by default 0."""
    return {
        "member": member, "tokens": tokens, "reward": reward, "advantage": advantage, "ending": ending,
        "versions": [0] * len(tokens) if versions is None else versions,
        "logprobs": logprobs, "trained": trained,
    }  # fmt: skip


def kept(step, group, responses, *, prompt=(9,), row=None):
    """A sample of these responses."""
    items = [
        {
            "group": group, "member": one["member"], "reward": one["reward"], "outcome": one["advantage"],
            "ending": one["ending"], "segments": [[1, version, 1] for version in one["versions"]],
        }
        for one in responses
    ]  # fmt: skip
    columns = {
        "logprobs": [
            number
            for one in responses
            for number in one["logprobs"] or [-1.0] * sum(version >= 0 for version in one["versions"])
        ],
        "trained": [number for one in responses for number in one["trained"] or ()],
    }
    return KeptSample(
        step, group, {"why": "random", "parts": {}, "items": items}, json.dumps(row or {}).encode(),
        np.array(prompt, "<i4").tobytes(),
        np.array([token for one in responses for token in one["tokens"]], "<i4").tobytes(),
        *(np.array(numbers, "<f4").tobytes() for numbers in columns.values()),
    )  # fmt: skip


def add_samples(run, samples):
    """Write them into the run's database, as a controller would."""
    with sqlite3.connect(run / "run.db") as db:
        for one in samples:
            fields = (json.dumps(one.facts), one.row, one.prompt, one.tokens, one.logprobs, one.trained,
                      one.weights)  # fmt: skip
            size = OVERHEAD_BYTES + sum(map(len, fields))
            db.execute(
                "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (one.step, one.group, *fields, size, _checksum(one.step, one.group, *fields)),
            )
    db.close()
