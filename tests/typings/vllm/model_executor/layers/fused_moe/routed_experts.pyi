from typing import Any

class RoutedExperts:
    def __getattr__(self, name: str) -> Any: ...
