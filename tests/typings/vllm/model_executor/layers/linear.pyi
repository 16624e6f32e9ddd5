from typing import Any

class LinearBase:
    def __getattr__(self, name: str) -> Any: ...
