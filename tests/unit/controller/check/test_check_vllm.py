"""What `check` says of a run on vLLM, from sources alone."""

import json

import pytest

from controller.check.vllm import supported_architectures, vllm_problems
from protocol.settings import RolloutSettings, VllmSettings

REGISTRY = """
import nothing_of_this_is_imported
_TEXT_GENERATION_MODELS = {"GoodForCausalLM": ("good", "GoodForCausalLM")}
_MULTIMODAL_MODELS = {"SeeingModel": ("seeing", "SeeingModel")}
_EMBEDDING_MODELS = {"BertModel": ("bert", "BertModel")}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a vLLM of two architectures first, or only, on the import path."""

    def put(registry=REGISTRY):
        folder = tmp_path / "vllm" / "model_executor" / "models"
        folder.mkdir(parents=True)
        (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('check must not import vLLM')")
        (folder / "registry.py").write_text(registry)
        monkeypatch.syspath_prepend(tmp_path)

    return put


def problems(shape, *, instances=1, parts=1):
    rollout = RolloutSettings(instances=instances, vllm=VllmSettings(tensor_parallel_size=parts))
    return dict(vllm_problems(rollout, shape))


def test_an_architecture_that_the_installed_vllm_lacks_is_refused_with_its_neighbours(install):
    install()
    assert problems({"architectures": ["GoodForCausalLM"]}) == {}
    assert problems({}) == {}  # a factory will make the model
    words = problems({"architectures": ["GoodForCausalML"]})["model.path"]
    assert "is a GoodForCausalML, which the vLLM that is installed here does not support" in words
    assert "(it does GoodForCausalLM)" in words
    assert "model.path" in problems({"architectures": ["BertModel"]})  # it generates nothing


def test_a_registry_of_another_form_refuses_nothing(install, tmp_path):
    install("MODELS = load()")
    assert problems({"architectures": ["Whatever"]}) == {}
    assert supported_architectures(tmp_path / "nowhere.py") == set()


def test_heads_that_devices_cannot_share_are_refused(install):
    install()
    shape = json.loads('{"num_attention_heads": 14}')
    assert problems(shape, parts=2) == {}
    assert "does not divide the model's 14" in problems(shape, parts=4)["rollout.vllm.tensor_parallel_size"]


def test_a_vllm_that_is_not_there_is_named_with_its_extras_unless_workers_come_from_outside(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    assert "'.[workers,vllm]'" in problems({})["rollout.engine"]
    assert problems({}, instances=0) == {}
