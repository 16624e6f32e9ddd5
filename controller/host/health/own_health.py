"""Alarms about the controller's event loop, disk and socket and the user's strategies, with their figures.

Invariants: an alarm is raised at one limit and withdrawn at a milder one, so it does not flap; the loop is
judged by a whole window, so a start raises no alarm; a disk whose free space is unknown raises none.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from controller.core.core import Core
from controller.core.state.views.snapshot import Alarm
from controller.host.health.loop_lag import WINDOW_S, Lag, LoopLag
from controller.host.health.slow_strategies import SlowStrategies
from protocol.files import exists

LATE_S, IN_TIME_S = 1.0, 0.5  # for a twentieth of the time
FULL_BYTES, ROOMY_BYTES = 5e9, 6e9


class OwnAlarms:
    """Decides which alarms hold; pure."""

    def __init__(self) -> None:
        self._is_late = self._is_full = False

    def look(self, lag: Lag, free_bytes: int | None, *, where: str) -> list[Alarm]:
        """Alarms that hold. `free_bytes`: space on the disk of `where`; None: unknown."""
        self._is_late = lag.window_s >= WINDOW_S and lag.p95_s > (IN_TIME_S if self._is_late else LATE_S)
        self._is_full = free_bytes is not None and free_bytes < (ROOMY_BYTES if self._is_full else FULL_BYTES)
        found: list[Alarm] = []
        if self._is_full:
            evidence = f"{(free_bytes or 0) / 1e9:.1f} GB are free on the disk of {where}"
            remedy = "Free some before it is full, which ends the run, or lower trainer.keep_checkpoints."
            found.append(Alarm("disk", "controller", evidence, remedy))
        if self._is_late:
            evidence = f"its event loop comes {lag.p95_s:.1f} s late for 5 % of the last {WINDOW_S:.0f} s"
            evidence += f", {lag.max_s:.1f} s at most"
            remedy = "Is the machine busy, or the disk slow? launch.py stacks RUN says where it stands."
            found.append(Alarm("slow loop", "controller", evidence, remedy))
        return found


class OwnHealth:
    """Health of the controller of one run; a context manager."""

    def __init__(
        self, folder: Path, core: Callable[[], Core], lost_socket: Callable[[], Path | None] = lambda: None
    ) -> None:
        """`core()` returns the current core, which is replaced when an event is passed over.

        `lost_socket()`: the socket at which workers attach, if it was removed.
        """
        self._folder, self._alarms, self._lost_socket = folder, OwnAlarms(), lost_socket
        self._core, self._strategies = core, SlowStrategies()

    def __enter__(self) -> "OwnHealth":
        self._lag = LoopLag()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lag.close()

    def look(self) -> tuple[dict[str, Any], list[Alarm]]:
        """Figures of the controller for status.json, and the alarms that hold."""
        lag, free_bytes = self._lag.figures(), self._free_bytes()
        told: dict[str, Any] = {f"loop_lag_{name}": round(value, 4) for name, value in lag._asdict().items()}
        told["disk_free_mb"] = None if free_bytes is None else free_bytes >> 20
        self._strategies.follow(self._core())
        own = self._alarms.look(lag, free_bytes, where=str(self._folder))
        return told, [*self._strategies.look(), *own, *self._removed()]

    def _removed(self) -> list[Alarm]:
        if not exists(self._folder):
            evidence = f"{self._folder}, the run's folder, was removed or renamed"
            remedy = "Give it its name back: else the run ends as soon as it is to write of a step."
            return [Alarm("folder", "controller", evidence, remedy)]
        if (socket := self._lost_socket()) is None:
            return []
        evidence = f"{socket}, where workers attach, was removed"
        remedy = (
            "Attached workers go on, but no other can attach, and no order comes through. "
            f"`launch.py stop {self._folder}` ends the run in good order, and the same command goes on."
        )
        return [Alarm("socket", "controller", evidence, remedy)]

    def _free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None
