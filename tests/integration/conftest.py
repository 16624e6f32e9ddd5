"""Fixtures that several integration tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from worker_stand import Stand


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A server that workers attach to; its worker processes are killed at the end."""
    made = Stand(tmp_path)
    yield made
    await made.close()
