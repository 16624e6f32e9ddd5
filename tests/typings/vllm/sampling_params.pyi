from typing import Any

RequestOutputKind: Any
