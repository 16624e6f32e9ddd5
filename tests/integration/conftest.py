"""Fixtures that several integration tests share."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from made_model import PLACE
from worker_stand import Stand


@pytest.fixture(scope="session", autouse=True)
def place_of_the_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where `lay_model` makes the model of this session, or finds it: one for all its processes."""
    base = tmp_path_factory.getbasetemp()
    is_shared = "PYTEST_XDIST_WORKER" in os.environ  # then each has a folder in that of the session
    os.environ[PLACE] = str((base.parent if is_shared else base) / "even_digits")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A server that workers attach to; its worker processes are killed at the end."""
    made = Stand(tmp_path)
    yield made
    await made.close()
