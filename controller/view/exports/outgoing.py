"""The process that sends a run's lines to trackers and its news to people.

    python -m controller.view.exports.outgoing

Standard input has one line of JSON, and then nothing until the run ends.

Invariants: it only reads the run; whatever a tracker or a webhook does, the run and the others do not notice;
what a person should know is one line on standard output, and what a tracker prints goes to standard error; it
ends with the run, and within END_S after.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

from controller.core.state.views.snapshot import Alarm
from controller.history.alarms import alarms, watched
from controller.view.exports.jsonl_tail import Line, StepLines, Tail
from controller.view.exports.news import Bell, News, of_alarm, of_end, post, run_command
from controller.view.exports.trackers import Sending, make_tracker
from protocol.importing import put_users_first

LOOK_S = 1.0  # between two looks at the files
END_S = 15.0  # for trackers to take the last lines
MOST_BLAMED = 2  # workers that are overdue, told of beside the longest wait

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What to send, and where."""

    run: str
    run_id: str
    config: dict[str, Any]
    trackers: list[str] = field(default_factory=list)
    url: str = ""
    command: list[str] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    status_before: list[int] = field(default_factory=list)  # `identity` of what an earlier controller left


class Looker:
    """Reads a run's files each second, and passes on new lines."""

    def __init__(self, wanted: Outgoing, *, tell: Tell) -> None:
        self._wanted, self._tell = wanted, tell
        self._run = Path(wanted.run)
        self._metrics = Tail(self._run / "metrics.jsonl")
        self._evaluated = Tail(self._run / "evaluations.jsonl")
        self._status = self._run / "status.json"
        self._lines: list[Mapping[str, object]] = []
        self._evaluations: list[Line] = []
        self._bell = Bell(wanted.on)
        self._sendings = [
            Sending(
                name,
                lambda name=name: make_tracker(name, self._run, wanted.config, wanted.run_id),
                tell=tell,
                again=lambda end: StepLines(self._run / "metrics.jsonl", until=end),
            )
            for name in wanted.trackers
        ]
        self._news: Queue[News | None] = Queue()
        self._caller = Thread(target=self._call, name="news", daemon=True)
        self._caller.start()

    def look(self) -> None:
        """Send what has come since the last look."""
        count, lines, is_anew = 0, list[Line](), False
        for lines, is_anew in self._metrics.pieces():
            count += 1
            self._lines = watched(lines if is_anew else self._lines + lines)
        for sending in self._sendings if count else ():
            if count == 1:
                sending.send(lines, is_anew=is_anew, end=self._metrics.end)
            else:  # more than is held: it is read where it lies
                sending.begin_again(self._metrics.end)
        for more, is_other in self._evaluated.pieces():
            count += 1
            self._evaluations = (more if is_other else self._evaluations + more)[-1000:]
        if count:
            bound = self._wanted.config.get("staleness", {}).get("max_staleness")
            found = [of_alarm(one) for one in alarms(self._lines, self._evaluations, bound=bound)]
            self._ring(found)
        self._ring(self._standing())

    def finish(self) -> None:
        """The run is over: send the rest, and how it ended."""
        self.look()
        summary = self._run / "summary.json"
        try:
            end = of_end(json.loads(summary.read_text()))
        except (OSError, ValueError):
            text = "The controller ended without a word. The same command goes on with the run."
            end = News("failed", "end", text)
        self._ring([end])
        until_s = time.monotonic() + END_S
        self._news.put(None)
        for sending in self._sendings:
            sending.end()  # of all first: they close side by side, and none waits for one that hangs
        for sending in self._sendings:
            if not sending.finish(max(0.0, until_s - time.monotonic())):
                self._tell(
                    f"The tracker {sending.name} did not take its last lines in {END_S:g} s. "
                    f"`launch.py export {self._run} --to {sending.name}` sends all of them."
                )
        self._caller.join(max(0.0, until_s - time.monotonic()))
        if self._caller.is_alive():
            self._tell(
                f"notify has not taken the run's last news in {END_S:g} s, so nobody was told how it ended; "
                "see whether what notify.url or notify.command names answers."
            )

    def _standing(self) -> list[News]:
        """Notifications of overdue waits and of failures, from status.json."""
        if identity(self._status) == self._wanted.status_before:
            return []
        try:
            status = json.loads(self._status.read_text())
        except (OSError, ValueError):
            return []
        overdue = [wait for wait in status.get("waits", ()) if wait["is_overdue"]]
        workers = {worker["name"] for worker in status.get("workers", ())}
        # the next step stands because of somebody, who may be overdue only after it
        blamed = [wait for wait in overdue[1:] if wait["owner"] in workers]
        failing = [of_alarm(Alarm(**alarm)) for alarm in status.get("alarms", ())]
        return failing + [
            News(
                "stuck", wait["owner"],
                f"{wait['owner']} has waited {wait['for_s']:.0f} s for {wait['what']}: {wait['then']}.",
            )
            for wait in [*overdue[:1], *blamed[:MOST_BLAMED]]
        ]  # fmt: skip

    def _ring(self, found: list[News]) -> None:
        for one in self._bell.new(found, time.monotonic()):
            self._news.put(one)

    def _call(self) -> None:
        while (one := self._news.get()) is not None:
            name = self._run.name
            failures = {
                "notify.url": self._wanted.url and post(self._wanted.url, name, one),
                "notify.command": self._wanted.command and run_command(self._wanted.command, name, one),
            }
            for key, failure in failures.items():
                if failure:
                    self._tell(f"{key} was not told that the run is {one.event}: {failure}. The run goes on.")


def identity(file: Path) -> list[int]:
    """What another file under this name has otherwise; nothing if there is none."""
    try:
        found = file.stat()
    except OSError:
        return []
    return [found.st_ino, found.st_mtime_ns]


def main() -> None:
    """Send until standard input ends, as it does with the run, however that ends."""
    put_users_first()
    words = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever prints to standard output prints to standard error

    def say(text: str) -> None:
        with suppress(BrokenPipeError):  # the controller was killed, and nobody listens
            words.write(" ".join(text.split()) + "\n")

    looker = Looker(Outgoing(**json.loads(sys.stdin.readline())), tell=say)
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_S)
        if ready and not os.read(0, 1):
            break
        looker.look()
    looker.finish()
    os._exit(0)  # a tracker that hangs has a thread that nothing ends


if __name__ == "__main__":
    main()
