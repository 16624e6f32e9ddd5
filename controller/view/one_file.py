"""A run as one HTML file: the pages of the view with their data, to be mailed or attached.

Invariants: the file makes no request, and its content policy forbids them; texts of models and workers are
inside as JSON without a tag, and become text as in the view; it shows the newest moment alone.
"""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.view.over_time import ages, starts
from controller.view.past.replayed_core import StillReading
from controller.view.shown_run import ShownRun
from protocol.errors import StaleFlowError

PAGES = Path(__file__).parent / "pages"
SHOWN = ("now", "ledger", "timeline", "samples", "metrics")
MOST_SAMPLES = 50
PART_S = 1.0  # of reading, before it is told how far that is
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
ASKS_THE_FILE = """
const answers = JSON.parse(document.getElementById("answers").textContent);
window.inFile = answers.pages;
window.fetch = async (address) => {
  const found = answers.found[String(address).split("?")[0]];
  const gone = { error: "It is not in this file. Open the run itself: launch.py view RUN." };
  const isThere = found !== undefined && found.error === undefined;
  return { ok: isThere, status: isThere ? 200 : 404, json: async () => found ?? gone };
};
"""


def one_file(run: ShownRun, *, tell: Callable[[str], None] = lambda text: None) -> str:
    """The file's text; `tell` hears how far it is. Raises: RunError if the run cannot be read."""
    _read(run, tell)
    answers = json.dumps({"pages": SHOWN, "found": _answers(run)}).replace("<", "\\u003c")
    modules = {path.stem: _module(path) for path in sorted(PAGES.glob("*.js"))}
    addresses = {f"staleflow/{name}": f"data:text/javascript;base64,{text}" for name, text in modules.items()}
    page = (PAGES / "index.html").read_text()
    body = page[page.index("<body>") : page.index("</body>")].replace("<body>", '<body class="file">')
    styles = (PAGES / "uplot/uPlot.min.css").read_text() + (PAGES / "view.css").read_text()
    plots = (PAGES / "uplot/uPlot.iife.min.js").read_text().replace("</script", "<\\/script")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>StaleFlow</title>
<style>{styles}</style>
<script type="application/json" id="answers">{answers}</script>
<script>{ASKS_THE_FILE}</script>
<script>{plots}</script>
<script type="importmap">{json.dumps({"imports": addresses})}</script>
</head>
{body}
<script type="module">import "staleflow/main";</script>
</body>
</html>
"""


def _module(path: Path) -> str:
    """A page's module, whose imports are names of the import map."""
    text = re.sub(r'from "\./(\w+)\.js"', r'from "staleflow/\1"', path.read_text())
    return base64.b64encode(text.encode()).decode()


def _read(run: ShownRun, tell: Callable[[str], None]) -> None:
    """Read what the answers are made of: the newest moment, and the whole history."""
    while True:
        try:
            run.now({}, patience_s=PART_S)
            break
        except StillReading as way:
            what = f"{way.of}: byte" if way.of else "the newest moment: event"
            tell(f"reading {what} {way.number:,} of {way.last:,}")
    while True:
        with run.history() as (_, progress):  # which lets it go on
            passed, last = progress["passed"], progress["of"]
        if run.join(PART_S):
            break
        tell(f"reading the history: event {passed:,} of {last:,}")


def _answers(run: ShownRun) -> dict[str, Any]:
    """The answers that the pages need, by address."""
    one = "/api/runs/0"
    samples = run.samples()
    samples["kept"] = samples["kept"][-MOST_SAMPLES:]
    found = {
        "/api/runs": {"runs": [run.facts()], "may_act": False},
        f"{one}/moment": run.moment({}),
        f"{one}/now": run.now({}, find=""),
        f"{one}/ledger": run.ledger({}),
        f"{one}/timeline": run.timeline(None, None, ""),
        f"{one}/starts": starts(run, {}),
        f"{one}/ages": ages(run),
        f"{one}/metrics": _or_error(run.metrics),
        f"{one}/samples": samples,
    }
    for step, group in samples["kept"]:
        found[f"{one}/samples/{step}/{group}"] = _or_error(
            lambda step=step, group=group: run.sample(step, group)
        )
    return found


def _or_error(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `look` gives; why not, as what is damaged keeps nobody from the others."""
    try:
        return look()
    except StaleFlowError as error:
        return {"error": str(error)}
