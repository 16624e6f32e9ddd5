"""The quickstart's task: its prompts, its verifier, and the model that it begins with."""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from examples import ledger_task

ROOT = Path(__file__).resolve().parents[2]


def test_equal_seeds_give_equal_prompts_and_other_seeds_others():
    first, again, other = (list(islice(ledger_task.prompts(seed=s), 20)) for s in (1, 1, 2))
    assert first == again != other


def test_prompts_are_heavy_tailed_within_their_bounds():
    lengths = sorted(len(row["prompt"]) - 1 for row in islice(ledger_task.prompts(seed=0), 4000))
    assert lengths[0] == ledger_task.FEWEST_DIGITS
    assert lengths[-1] == ledger_task.MOST_DIGITS
    assert 4 <= lengths[2000] <= 6
    assert lengths[3600] >= 11


@pytest.mark.parametrize("text", ["0=0 5=5 7=2 8=0 #0", "05=5 78=0 #0", "0578=0 #0"])
def test_right_workings_earn_the_reward(text):
    assert ledger_task.reward("5807:", text, "stop") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#0",
        "0=0 5=5 7=2 8=0 #1",  # wrong answer
        "0=0 5=6 7=2 8=0 #0",  # wrong running total
        "0=0 5=5 8=3 7=0 #0",  # wrong order
        "0=0 5=5 5=0 7=7 8=5 #5",  # a digit twice
        "0=0 5=5 7=2 #2",  # a digit left out
        "0=0 5=5 7=2 8=0 #0 ",  # something behind the answer
        "0=0  5=5 7=2 8=0 #0",
        "0=0 5=5 7=2 8=0#0",
    ],
)
def test_anything_else_earns_nothing(text):
    assert ledger_task.reward("5807:", text, "stop") == 0.0


def test_a_response_that_was_cut_off_earns_nothing():
    assert ledger_task.reward("5807:", "0578=0 #0", "length") == 0.0


def test_every_demonstration_earns_the_reward_and_fits_the_context():
    source = random.Random(0)
    for row in islice(ledger_task.prompts(seed=3), 300):
        text = ledger_task.demonstration(row["prompt"][:-1], source)
        assert ledger_task.reward(row["prompt"], text, "stop") == 1.0
        assert len(row["prompt"]) + len(text) + 1 <= ledger_task.CONTEXT
        assert text.endswith(f"#{row['answer']}")


def test_prompts_and_reward_need_no_torch():
    words = "import sys, examples.ledger_task; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
