"""What the tests of `check` share."""

import importlib
import json

import pytest


@pytest.fixture
def answered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizer and loss are tried in this process, which has torch; test_asking shows the other."""

    def ask(module: str, question: object, *, limit_s: float) -> object:
        del limit_s
        return importlib.import_module(module).answer(json.loads(json.dumps(question)))

    for name in ("plugins", "prompts", "reward"):
        monkeypatch.setattr(f"controller.check.{name}.ask", ask)
