"""One trainer rank fails: the others end too, and rank 0, which has the link, says why."""

import os

import pytest

from tests.integration.test_trainer_ranks import prepared, run_ranks  # noqa: F401 - a fixture

LOSS = """
import os

CALLS = []


def on_one_rank(tokens):
    CALLS.append(len(tokens.logprobs))
    if os.environ["RANK"] == "1" and len(CALLS) > 2:
        raise RAISED
    return -tokens.advantages * tokens.logprobs
"""
BLAMED = "PluginError: trainer.loss: on_one_rank ({}/mine.py, line 10) raised KeyError: 6"


@pytest.mark.parametrize(
    ("is_streaming", "raised", "told"),
    [
        (False, "KeyError(6)", BLAMED),
        (True, "KeyError(6)", BLAMED),
        (
            False,
            "RuntimeError('out of memory')",
            "RunError: Trainer rank 1 failed: RuntimeError: out of memory",
        ),
    ],
)
def test_rank_0_ends_with_what_has_failed_on_another(prepared, tmp_path, is_streaming, raised, told):  # noqa: F811
    (tmp_path / "mine.py").write_text(LOSS.replace("RAISED", raised))
    options = {"loss": f"{tmp_path}/mine.py:on_one_rank", "streaming": is_streaming, "minibatches": 1}
    _, file, model_directory = prepared("raising", **options)
    ended = run_ranks(model_directory, "train", (file, 3))
    assert ended.returncode == 1
    assert ended.stderr.rpartition("[rank0]: protocol.errors.")[2].startswith(told.format(tmp_path))


NOT_FINITE = """
import os

import numpy

from workers.trainer.ranks import Ranks

RANK = os.environ["RANK"]
PIPE = open("FIFO", "rb") if RANK == "0" else open("FIFO", "wb", 0)
RECEIVE, SAVE = Ranks.receive, numpy.savez


def told(ranks):
    PIPE.write(b".")
    return RECEIVE(ranks)


def save(*places, **arrays):
    assert PIPE.read(4) == b"....", "rank 1 has left; expected it to wait after three orders"
    SAVE(*places, **arrays)


Ranks.receive, numpy.savez = told, save


def loss(tokens):
    return tokens.logprobs * float("nan")
"""


def test_rank_0_writes_out_what_is_not_finite_before_the_others_leave(prepared, tmp_path):  # noqa: F811
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "mine.py").write_text(NOT_FINITE.replace("FIFO", f"{tmp_path}/fifo"))
    _, file, model_directory = prepared("nan", loss=f"{tmp_path}/mine.py:loss", minibatches=1)
    ended = run_ranks(model_directory, "train", (file, 2))
    told = ended.stderr.rpartition("[rank0]: ")[2]
    assert told.startswith("protocol.errors.NotFinite: 3 optimizer steps in a row were not finite")
    assert (tmp_path / "nan" / "not_finite" / "version_2" / "batch.npz").exists()


def test_a_rank_that_loses_rank_0_ends_and_says_so(prepared):  # noqa: F811
    _, file, model_directory = prepared("lost")
    ended = run_ranks(model_directory, "lose rank 0", (file, 2))
    assert ended.returncode == 1
    assert "RankLost: Another trainer rank was lost" in ended.stderr
