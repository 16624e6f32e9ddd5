"""A recorded run to be shown, and a browser without a screen."""

import asyncio
import json
import sqlite3
from itertools import count

from controller.config.models import Config
from controller.view.door.access import ACTING, Access
from controller.view.door.shared import SharedAnswers
from controller.view.shown_run import ShownRun
from controller.view.site import Site
from tests.support.recorded_run import record

CONFIG = Config.model_validate(
    {
        "run": {"steps": 4},
        "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 96},
        "trainer": {"batch_groups": 4},
        "staleness": {"max_staleness": 1},
    }
)


def recorded(path, config=CONFIG, **more):
    """A run of four steps that is over, with its metrics."""
    outcome = record(path, config, **more)
    lines = "".join(f"{json.dumps(line)}\n" for line in outcome.lines)
    (path / "summary.json").write_text("{}")
    (path / "metrics.jsonl").write_text(lines + '{"step": 99, "half a li')
    return path


class Browser:
    """Asks a site as a browser with the token would, unless it is told otherwise."""

    def __init__(self, *runs, order=None):
        self.access = Access(host="127.0.0.1", port=8470, token="secret")
        site = Site([ShownRun(run) for run in runs], self.access, order=order)
        site._shared = SharedAnswers(count().__next__)  # no answer is still young when it asks again
        self.app = site.app()

    def ask(self, path, *, method="GET", headers=None, body=b""):
        """Status, headers and body of the answer."""
        if headers is None:
            headers = {"host": "127.0.0.1:8470", "cookie": "staleflow_8470=secret"}
            headers |= {ACTING: "1"} if method == "POST" else {}
        return asyncio.run(self._ask(path, method, headers, body))

    def json(self, path, **more):
        """Status and what the body says, once the journal is read for it."""
        status, _, body = self.ask(path, **more)
        while status == 202:
            status, _, body = self.ask(path, **more)
        return status, json.loads(body)

    async def _ask(self, path, method, headers, body):
        sent = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8470),
        }  # fmt: skip

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        status = sent[0]["status"]
        return status, dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent[1:])


def change(run, *statements):
    """Change the journal of a run that nobody writes; each statement is SQL, or SQL with its values."""
    db = sqlite3.connect(run / "run.db")
    with db:
        for statement in statements:
            db.execute(*([statement] if isinstance(statement, str) else statement))
    db.close()


def cut(run, number):
    """The journal as it was after this event."""
    tables = ("events", "skipped", "snapshots")
    change(run, *(f"DELETE FROM {table} WHERE seq > {number}" for table in tables))


def shorten(run, number):
    """Delete what a compact run does once all its snapshots cover this event, after which it has one."""
    change(run, f"DELETE FROM events WHERE seq <= {number}", f"DELETE FROM snapshots WHERE seq < {number}")
