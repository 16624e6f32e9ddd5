from typing import Any

class BaseLinearLayerWithLoRA:
    def __getattr__(self, name: str) -> Any: ...
