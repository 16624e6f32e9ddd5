from typing import Any

class RequestOutput:
    def __getattr__(self, name: str) -> Any: ...
