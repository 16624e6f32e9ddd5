"""Notifications about a run: its end, its standstill, its alarms, sent by webhook or command.

Invariants: at most one notification per cause and hour; a webhook that does not answer is tried a few times,
and the run is not delayed; texts of the run travel as data of a request or as one argument, never through a
shell.
"""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException, InvalidURL
from time import sleep
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from controller.core.state.views.snapshot import Alarm

Event = Literal["done", "failed", "stuck", "alarm"]
AGAIN_S = 3600.0  # until the same cause is told again
TIMEOUT_S = 10.0
PAUSES_S = (1.0, 5.0, 20.0)  # before each further attempt
MOST_CHARS = 1_500


class News(NamedTuple):
    """One notification."""

    event: Event
    cause: str  # what makes two of them the same
    text: str


class Bell:
    """Filters notifications: each cause once an hour."""

    def __init__(self, wanted: Sequence[str] = ("done", "failed", "stuck", "alarm")) -> None:
        self._wanted = wanted
        self._told_s: dict[tuple[str, str], float] = {}

    def new(self, found: Sequence[News], now_s: float) -> list[News]:
        """Notifications of wanted events whose cause was not sent within the hour."""
        new = []
        for one in found:
            key = (one.event, one.cause)
            if one.event in self._wanted and now_s - self._told_s.get(key, -AGAIN_S) >= AGAIN_S:
                self._told_s[key] = now_s
                new.append(one)
        return new


def of_alarm(alarm: Alarm) -> News:
    """An alarm as news."""
    return News("alarm", alarm.name, alarm.in_words())


def of_end(summary: dict[str, Any]) -> News:
    """How a run ended, by its summary.json."""
    steps = summary.get("steps", 0)
    took = f"{steps} train step{'s' * (steps != 1)} in {summary.get('time_s', 0.0):.0f} s"
    reward = summary.get("reward/last_steps")
    more = "" if reward is None else f", reward {reward:.3f} in the last"
    if summary.get("is_success", True):
        how = "Stopped" if summary.get("ending") == "stopped" else "Done"
        return News("done", "end", f"{how}: {took}{more}. {summary.get('verdict', '')}".strip())
    return News("failed", "end", f"Failed after {took}: {summary.get('reason') or summary.get('ending', '')}")


def post(url: str, run: str, news: News, *, pause: Callable[[float], None] = sleep) -> str:
    """Send a notification to a webhook; returns why it failed, "" if it did not."""
    is_plain = "ntfy" in (urlsplit(url).hostname or "")
    title, text = f"{run}: {news.event}", news.text[:MOST_CHARS]
    if is_plain:
        body, kind = text.encode(), "text/plain; charset=utf-8"
    else:  # Slack reads `text`, Discord `content`; programs the rest
        told = {"text": f"{title}. {text}", "content": f"{title}. {text}", "run": run, "event": news.event}
        body, kind = json.dumps(told | {"cause": news.cause, "message": text}).encode(), "application/json"
    headers = {"content-type": kind, "user-agent": "staleflow"}
    headers |= {"title": title.encode("ascii", "replace").decode()} if is_plain else {}
    failure = ""
    for wait_s in (0.0, *PAUSES_S):
        pause(wait_s)
        try:
            request = urllib.request.Request(url, data=body, headers=headers, method="POST")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"it answered with status {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (ValueError, InvalidURL) as error:  # its text has the address, which may be a secret
            failure = f"notify.url is no address of a webhook ({type(error).__name__})"
            break
        except (OSError, HTTPException) as error:
            failure = str(error) or type(error).__name__
    return failure


def run_command(command: Sequence[str], run: str, news: News) -> str:
    """Call the command with run, event and text; returns why it failed, "" if it did not."""
    words = [*command, run, news.event, news.text[:MOST_CHARS]]
    try:
        # no pipes: what it leaves behind would hold their ends, and it would count as one that hangs
        no = subprocess.DEVNULL
        done = subprocess.run(words, timeout=TIMEOUT_S, check=False, stdin=no, stdout=no, stderr=no)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"it ended with exit code {done.returncode}" if done.returncode else ""
