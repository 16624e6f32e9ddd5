"""vLLM is in an environment of its own (.venv-vllm): what is used of it has no types here."""

from typing import Any

EngineArgs: Any

class SamplingParams:
    def __init__(self, **options: Any) -> None: ...
