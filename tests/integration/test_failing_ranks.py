"""One trainer rank fails: the others end too, and rank 0, which has the link, says why."""

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


def test_a_rank_that_loses_rank_0_ends_and_says_so(prepared):  # noqa: F811
    _, file, model_directory = prepared("lost")
    ended = run_ranks(model_directory, "lose rank 0", (file, 2))
    assert ended.returncode == 1
    assert "RankLost: Another trainer rank was lost" in ended.stderr
