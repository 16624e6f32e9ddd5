from typing import Any

class RelayReply:
    def __init__(self, content_type: str, chunks: Any, close: Any) -> None: ...
