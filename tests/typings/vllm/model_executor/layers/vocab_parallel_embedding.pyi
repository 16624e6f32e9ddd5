from typing import Any

class ParallelLMHead:
    def __getattr__(self, name: str) -> Any: ...
