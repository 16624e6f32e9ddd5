"""What a reward model must be: a sequence classifier with one output.

Invariant: pure.
"""

import json
from typing import cast


def output_problem(path: str, config: bytes | None) -> str | None:
    """Why the model with this config.json gives no single number; None if it does.

    A config.json that says nothing of labels has two: that is transformers' default.
    """
    try:
        found = json.loads(config) if config is not None else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return f"The reward model {path} has no config.json that can be read; expected a model directory."
    shape = cast("dict[str, object]", found)
    labels = shape.get("id2label")
    outputs = len(cast("dict[str, str]", labels)) if isinstance(labels, dict) else shape.get("num_labels", 2)
    if outputs == 1:
        return None
    return (
        f"The reward model {path} has {outputs} outputs; expected a head with one, the reward. "
        "Choose a model that was saved with num_labels=1."
    )
