"""The door of an agent worker: connects requests and listener.

Invariant: imported only if the door is on, because it needs the extra `web`.
"""

import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from protocol.settings import WorkerSettings
from workers.agent.door.chat_request import ChatRequest, read_request
from workers.agent.door.desk import DoorDesk, DoorQuestion
from workers.agent.door.listener import DoorListener
from workers.agent.door.responses_request import read_response_request
from workers.agent.door.site import make_site

logger = logging.getLogger(__name__)


class Door:
    """Within `async with`: open at `url`."""

    def __init__(self, settings: WorkerSettings, ask: Callable[[int, DoorQuestion], None]) -> None:
        """`ask`: as in `DoorDesk`."""
        self._settings = settings
        self._told: set[str] = set()  # fields that were warned of
        self.desk = DoorDesk(ask)
        readers = {"chat/completions": read_request, "responses": read_response_request}
        self._listener = DoorListener(
            make_site(self.desk, {path: partial(self._read, read) for path, read in readers.items()})
        )

    @property
    def url(self) -> str:
        """The `base_url` for clients."""
        return self._listener.url

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listener.__aexit__(kind, error, trace)

    def _read(self, read: Callable[..., ChatRequest], body: bytes) -> ChatRequest:
        """Raises: DoorRefusal."""
        is_refusing = self._settings.agent.other_sampling == "refuse"
        request = read(body, self._settings.rollout.sampling, is_refusing=is_refusing)
        if new := [name for name in request.disobeyed if name not in self._told]:
            self._told.update(new)
            logger.warning(
                "A request at the door asks for another %s than the run's, and was answered with the run's "
                "own (agent.other_sampling: ignore). Further ones are not told.",
                ", ".join(new),
            )
        return request
