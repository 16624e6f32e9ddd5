"""Reads prompts on demand of the core, in a daemon thread: a source that blocks must not delay the exit.

Invariant: one thread reads at a time, and groups are numbered in the order of the data.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Self

from controller.config.models import Config
from controller.core.commands import ReadPrompts
from controller.core.core import Core
from controller.core.events import Event, PromptsRead
from controller.data.sources import Sources
from controller.host.daemon_thread import in_daemon_thread
from controller.host.resume import known_rows


def identity(row: bytes) -> int:
    """A number that equal rows share, in whatever epoch and place they are read; never 0."""
    return int.from_bytes(blake2b(row, digest_size=7).digest(), "little") or 1


class PromptReader:
    """The prompts of one run, in order."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._next_group = sources, 0
        self._wanted: asyncio.Queue[ReadPrompts] = asyncio.Queue()  # at most one waits

    @classmethod
    async def open(
        cls,
        config: Config,
        prompts: Iterable[Mapping[str, Any]] | None,
        *,
        known: str | None,
        on_refused: Callable[[str], None],
    ) -> Self:
        """Open the sources: `prompts`, or else those that `data` names.

        `known`: their fingerprints when the run began. `on_refused(text)` is called in the running loop for
        rows that were left out. Raises: ConfigError.
        """
        loop = asyncio.get_running_loop()

        def refused(text: str) -> None:
            loop.call_soon_threadsafe(on_refused, text)

        return cls(await in_daemon_thread(lambda: Sources(config, prompts, known=known, on_refused=refused)))

    @property
    def fingerprints(self) -> str:
        """Fingerprints of the sources when the run began."""
        return self._sources.fingerprints

    async def go_on(self, core: Core, rows: Mapping[int, bytes], *, cursors: str | None) -> None:
        """Skip the rows that a resumed run has read.

        `rows`: rows that it still holds, by group; `cursors`: positions of the sources.
        Raises: ConfigError if the data has changed.
        """
        self._next_group = core.scoring.read_until
        known, mixture = known_rows(core, rows), core.state.mixture
        read, ended = mixture.read, [source.has_ended for source in mixture.sources]
        await in_daemon_thread(lambda: self._sources.take_up(read, known, cursors, ended=ended))

    def ask_for(self, wanted: ReadPrompts) -> None:
        """Queue a request of the core."""
        self._wanted.put_nowait(wanted)

    async def run(
        self, post: Callable[[Event, tuple[bytes, ...]], None], *, note: Callable[[str], None]
    ) -> None:
        """Answer requests for ever; `note(cursors)` gets the positions of the sources before each answer.

        Raises: whatever a source raises."""
        while True:
            wanted = await self._wanted.get()
            rows, sources = await in_daemon_thread(
                lambda wanted=wanted: self._sources.read(wanted.count, wanted.sources)
            )
            first, self._next_group = self._next_group, self._next_group + len(rows)
            note(self._sources.cursors)
            prompts = tuple(map(identity, rows))
            post(PromptsRead(first, len(rows), self._sources.is_end, sources, prompts), tuple(rows))
