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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, str]:
    """A model after ten steps of warm start, made as in a run, and what the process printed."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "short.py").write_text(
        "from examples import ledger_task\nledger_task.WARM_START_STEPS = 10\nmake = ledger_task.make_model\n"
    )
    return folder / "made" / "model", run_prepare(f"{folder}/short.py:make", folder / "made" / "model").stdout


def run_prepare(factory: str, directory: Path) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "workers.models.prepare",
        "--factory",
        factory,
        "--directory",
        str(directory),
    ]
    return subprocess.run([*words, "--seed", "1"], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_prepared_model_and_tokenizer_load_as_any_other(prepared):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, _ = prepared
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert sum(p.numel() for p in model.parameters()) == 124_352
    text = "5807:0=0 5=5 #0"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 14
    assert (directory / "model.safetensors").is_file()


def test_preparing_tells_its_progress_and_leaves_nothing_else(prepared):
    directory, printed = prepared
    lines = [line.split(" ", 2) for line in printed.splitlines()]
    assert {word for word, _, _ in lines} == {"progress"}
    fractions = [float(fraction) for _, fraction, _ in lines]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0
    assert [path.name for path in directory.parent.iterdir()] == ["model"]


def test_a_prepared_model_is_not_made_again(prepared):
    directory, _ = prepared
    before = (directory / "model.safetensors").stat().st_mtime_ns
    done = run_prepare("nowhere.py:make", directory)
    assert done.returncode == 0
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    raise OSError('disk full')", "failed: OSError: disk full"),
        ("    return None", "wrote no config.json"),
    ],
)
def test_a_factory_that_fails_is_one_paragraph_and_leaves_nothing(tmp_path, body, said):
    (tmp_path / "bad.py").write_text(f"def make(directory, *, seed, progress):\n{body}\n")
    done = run_prepare(f"{tmp_path}/bad.py:make", tmp_path / "out" / "model")
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list((tmp_path / "out").iterdir()) == []
