"""Predictions for the page What if: what may be asked, one at a time, and cancelled."""

import asyncio
import json
import os
import sys

import pytest

from controller.config.models import Config
from controller.simulation.compare import STRATEGIES
from controller.view.whatif import COMMAND, MOST_AN_HOUR, WhatIf, overrides
from protocol.errors import ConfigError
from strategies.routing import ROUTINGS
from tests.support.shown_run import Browser, recorded

LIMIT_S = 60
SAYS = "import sys; print('[ 1 s] step 3', file=sys.stderr); print({!r})"


def saying(text, more=""):
    return (sys.executable, "-c", SAYS.format(text) + more)


@pytest.mark.parametrize(
    "changes",
    [
        {"reward.function": "os:system"},
        {"staleness.routing": "evil.py:route"},
        {"staleness.routing": "a.b"},
        {"staleness.mu": "1; rm"},
        {"staleness.mu": 0.5},
        {"staleness.mu": "-1"},
        {"rollout.instances": "1" * 20},
        {f"staleness.{n}": "1" for n in range(20)},
    ],
)
def test_what_could_be_more_than_a_setting_is_refused(changes):
    with pytest.raises(ConfigError):
        overrides(changes)


def test_settings_become_words_of_a_command_line():
    changes = {"staleness.routing": "round_robin", "staleness.mu": "0.5", "rollout.instances": "4"}
    assert overrides(changes) == ["staleness.routing=round_robin", "staleness.mu=0.5", "rollout.instances=4"]


async def test_a_result_is_kept_until_the_next_one_is_asked_for(tmp_path):
    job = WhatIf(saying(json.dumps({"own": 1})))
    assert job.state() == {"state": "none"}
    begun = await job.begin(tmp_path, {"rollout.instances": "4"}, 2.5)
    assert begun["state"] == "going"
    with pytest.raises(ConfigError, match="goes on"):
        await job.begin(tmp_path, {}, None)
    async with asyncio.timeout(LIMIT_S):
        await job._task
    assert job.state()["state"] == "done"
    assert job.state()["result"] == {"own": 1}
    assert job.state()["changes"] == ["rollout.instances=4"]


async def test_a_command_that_ends_at_once_is_heard_as_one_that_takes_its_time(tmp_path, monkeypatch):
    def gone(*which):
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(os, "setpriority", gone)
    job = WhatIf(saying(json.dumps({"own": 1})))
    await job.begin(tmp_path, {}, None)
    async with asyncio.timeout(LIMIT_S):
        await job._task
    assert job.state()["result"] == {"own": 1}


async def test_what_the_command_says_of_its_failure_is_told(tmp_path):
    script = "; print('The run is too short.', file=sys.stderr); sys.exit(1)"
    job = WhatIf(saying("", script))
    await job.begin(tmp_path, {}, None)
    async with asyncio.timeout(LIMIT_S):
        await job._task
    assert job.state()["state"] == "failed"
    assert job.state()["error"] == "The run is too short."


@pytest.mark.parametrize(("changes", "has_at"), [({}, False), ({"staleness.mu": "0.5"}, True)])
async def test_a_moment_is_given_where_something_takes_over(tmp_path, changes, has_at):
    job = WhatIf((sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv))"))
    await job.begin(tmp_path, changes, 2.5)
    async with asyncio.timeout(LIMIT_S):
        await job._task
    assert ("--at" in job.state()["result"]) == has_at


async def test_one_that_goes_on_is_cancelled_and_another_may_begin(tmp_path):
    job = WhatIf((sys.executable, "-c", "import time; time.sleep(3600)"))
    await job.begin(tmp_path, {}, None)
    async with asyncio.timeout(LIMIT_S):
        assert (await job.cancel())["state"] == "cancelled"
        assert (await job.begin(tmp_path, {}, None))["state"] == "going"
        await job.cancel()


async def test_what_a_cancelled_one_says_while_it_ends_is_not_taken_for_the_next_one(tmp_path):
    script = "import json, sys; 'first' in sys.argv[-2] and sys.stdin.read(); print(json.dumps({'own': 2}))"
    job = WhatIf((sys.executable, "-c", script))
    await job.begin(tmp_path / "first", {}, None)
    async with asyncio.timeout(LIMIT_S):
        cancelling = asyncio.create_task(job.cancel())
        await asyncio.sleep(0)  # it was killed, and is still ending
        assert (await job.begin(tmp_path / "next", {}, None))["state"] == "going"
        await cancelling
        await job._task
    assert job.state() == {"state": "done", "result": {"own": 2}, "changes": [], "run": "next"}


async def test_an_hour_has_ten_predictions_and_the_next_is_refused_until_the_first_is_an_hour_old(tmp_path):
    now = 100.0
    job = WhatIf(saying("{}"), clock=lambda: now)
    async with asyncio.timeout(LIMIT_S):
        for _ in range(MOST_AN_HOUR):
            with pytest.raises(ConfigError, match="no_key"):
                await job.begin(tmp_path, {"no_key": "1"}, None)  # what is refused does not count
            await job.begin(tmp_path, {}, None)
            await job._task
        now = 700.0
        with pytest.raises(ConfigError, match=r"10 predictions .* in 50 min.*simulate --from"):
            await job.begin(tmp_path, {}, None)
        assert job.state()["state"] == "done", "the last one is still there"
        now = 3_700.0
        await job.begin(tmp_path, {}, None)
        await job._task


async def test_the_command_ends_with_the_view():
    """Its standard input is closed with the view, whatever ended that."""
    words = [sys.executable, "-P", "-c", COMMAND, "status", "/nowhere"]
    process = await asyncio.create_subprocess_exec(*words, stdin=-1, stderr=-1, stdout=-1)
    process.stdin.close()
    async with asyncio.timeout(LIMIT_S):
        assert await process.wait() == 1


def test_what_is_no_question_is_refused_by_the_site(tmp_path):
    browser = Browser(recorded(tmp_path / "run"))
    ask = {"method": "POST"}
    for body in (b"", b"[]", b"{}", b'{"changes": 7}', b'{"changes": {}, "at_s": "x"}', b"[" * 60_000):
        assert browser.json("/api/runs/0/whatif", body=body, **ask)[0] == 400, body
    status, found = browser.json("/api/runs/0/whatif", body=b'{"changes": {"trainer.lr": "1"}}', **ask)
    assert status == 409
    assert "trainer.lr" in found["error"]
    status, found = browser.json("/api/whatif")
    assert (status, found["state"]) == (200, "none")
    foreign = {"host": "127.0.0.1:8470", "cookie": "staleflow_8470=secret"}
    assert browser.ask("/api/whatif", method="DELETE", headers=foreign)[0] == 403


def test_the_page_offers_what_is_built_in_and_all_of_it_can_be_asked_for(tmp_path):
    status, found = Browser(recorded(tmp_path / "run")).json("/api/whatif")
    assert status == 200
    assert found["built_in"] == {"strategy": list(STRATEGIES), "routing": list(ROUTINGS)}
    for key, names in found["built_in"].items():
        for name in names:
            assert overrides({f"staleness.{key}": name}) == [f"staleness.{key}={name}"]
            Config.model_validate({"staleness": {key: name}})


async def test_a_line_of_any_length_on_stderr_ends_nothing(tmp_path):
    script = "; sys.stderr.write('x' * 300_000 + '\\n[ 9 s] step 7 \u00e9'); print(json.dumps({'own': 2}))"
    words = (sys.executable, "-c", "import json, sys" + script)
    job = WhatIf(words)
    await job.begin(tmp_path, {}, None)
    async with asyncio.timeout(LIMIT_S):
        await job._task
    assert job.state()["state"] == "done"
    assert job.state()["result"] == {"own": 2}
