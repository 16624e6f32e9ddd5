"""What is used here of datasets, which is an extra."""

from typing import Any

def load_from_disk(dataset_path: str) -> Any: ...
