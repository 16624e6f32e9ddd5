"""A model factory that runs in a process of its own, on that of the quickstart's task."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, str]:
    """A model after ten steps of warm start, made as in a run, and what the process printed."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "short.py").write_text(
        "from examples import ledger_task\nledger_task.WARM_START_STEPS = 10\nmake = ledger_task.make_model\n"
    )
    return folder / "made" / "model", run_prepare(f"{folder}/short.py:make", folder / "made" / "model").stdout


def run_prepare(factory: str, directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "workers.models.prepare",
        "--factory",
        factory,
        "--directory",
        str(directory),
    ]
    return subprocess.run(
        [*words, "--seed", "1", *more], cwd=ROOT, capture_output=True, text=True, check=False
    )


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


NESTED = """
import subprocess, sys
from pathlib import Path

def make(directory, *, seed, progress):
    place = Path(directory)
    first = place.parent / "begun"
    if not first.exists():
        first.touch()
        words = [sys.executable, "-m", "workers.models.prepare", "--factory", f"{__file__}:make"]
        words += ["--directory", str(place.parent / "model"), "--seed", str(seed), "--origin", "seed 1"]
        subprocess.run(words, check=True)
    (place / "config.json").write_text("{}")
"""


@pytest.mark.parametrize("origin", ["seed 1", "seed 2"])
def test_of_two_runs_that_make_one_model_at_a_time_the_second_takes_that_of_the_first(tmp_path, origin):
    (tmp_path / "nested.py").write_text(NESTED)
    leftover = tmp_path / "out" / ".model.making.killed"
    leftover.mkdir(parents=True)
    done = run_prepare(f"{tmp_path}/nested.py:make", tmp_path / "out" / "model", "--origin", origin)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["begun", "model", "model.json"]
    assert (tmp_path / "out" / "model.json").read_text() == "seed 1"
    if origin == "seed 1":
        assert (done.returncode, done.stderr) == (0, "")
        assert "model found at" in done.stdout
    else:
        assert done.returncode == 1
        assert "Another run has made" in done.stderr
