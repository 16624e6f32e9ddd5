"""What each address of the view answers."""

import json
import os
import random

import pytest

from controller.core.events import Received
from controller.durability.store import Store
from controller.view.door.access import HEADERS
from controller.view.door.viewers import MOST, PAGE
from protocol.errors import ConfigError
from protocol.ids import PeerId
from protocol.messages import Control, DrainWorker
from tests.support.shown_run import Browser, cut, recorded

RUN = "/api/runs/0"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("site") / "run")


@pytest.fixture(scope="module")
def browser(path):
    return Browser(path)


def test_the_page_and_all_that_it_names_are_there_and_nothing_is_asked_of_another_host(browser):
    status, headers, body = browser.ask("/")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/html")
    names = [name for part in body.decode().split('="/pages/')[1:] for name in [part.split('"')[0]]]
    preloaded = [name for name in names if name.endswith(".js") and "main" not in name and "/" not in name]
    names = [name for name in names if name not in preloaded]
    assert len(names) == 5
    scripts = ["main.js"]
    while scripts:
        _, _, text = browser.ask(f"/pages/{scripts.pop()}")
        assert b"http://" not in text.replace(b"http://www.w3.org/2000/svg", b"")
        found = [part.split('"')[0] for part in text.decode().split('from "./')[1:]]
        scripts += [name for name in found if name not in names]
        names += [name for name in found if name not in names]
    assert sorted(preloaded) == sorted(names[5:]), "else one is asked for when another has come"
    for name in names:
        assert browser.ask(f"/pages/{name}")[0] == 200, name
    assert b"https://" not in body


def test_every_answer_has_the_headers_that_keep_others_out(browser):
    for path in ("/", f"{RUN}/now", "/pages/nothing", "/nowhere"):
        _, headers, _ = browser.ask(path)
        for name, value in HEADERS.items():
            assert headers[name.encode()] == value.encode(), path
    assert browser.ask("/", headers={"host": "127.0.0.1:8470"})[0] == 401
    assert b"content-security-policy" in browser.ask("/", headers={"host": "127.0.0.1:8470"})[1]


def test_a_link_with_the_token_gives_a_cookie(browser):
    status, headers, _ = browser.ask("/?token=secret", headers={"host": "127.0.0.1:8470"})
    assert status == 200
    assert b"HttpOnly" in headers[b"set-cookie"]
    assert b"set-cookie" not in browser.ask("/")[1]


def test_now_is_the_newest_event_and_any_moment_before(browser):
    _, newest = browser.json(f"{RUN}/now")
    assert newest["steps"] == newest["steps_wanted"] == 4
    assert newest["is_over"]
    assert newest["number"] == newest["last"]
    _, half = browser.json(f"{RUN}/now?event={newest['last'] // 2}")
    assert half["number"] == newest["last"] // 2
    assert 0 < half["steps"] < 4
    assert len(half["workers"]) == 4
    _, step = browser.json(f"{RUN}/now?step=2")
    assert step["steps"] == 2
    _, second = browser.json(f"{RUN}/now?second={newest['now_s'] / 2}")
    assert second["now_s"] <= newest["now_s"] / 2
    assert half["pace"]["steps"] == half["steps"] - 1
    assert newest["pace"]["verdict"]
    tokens = half["tokens"]
    assert tokens["generated"] == sum(count for fate, count in tokens.items() if fate != "generated")


def test_the_ledger_has_a_column_per_batch_and_every_group_once(browser):
    _, ledger = browser.json(f"{RUN}/ledger?step=2")
    assert [one["train_version"] for one in ledger["columns"]] == [
        ledger["train_version"], ledger["train_version"] + 1
    ]  # fmt: skip
    groups = [group for column in ledger["columns"] for group in column["groups"]] + ledger["others"]
    assert len(groups) == len({group["id"] for group in groups}) == ledger["reserved"] + ledger["occupied"]
    assert all(0 <= group["done"] <= 1 for group in groups)


def test_who_the_next_batch_waits_for_is_as_much_as_it_lacks(browser):
    _, now = browser.json(f"{RUN}/now")
    seen = 0
    for number in range(20, now["last"], 23):
        _, ledger = browser.json(f"{RUN}/ledger?event={number}")
        due = {group["id"] for column in ledger["columns"][:1] for group in column["groups"]
               if group["state"] in ("generating", "scoring")}  # fmt: skip
        waits = [wait["group"] for wait in ledger["waits"]]
        missing = max(0, ledger["batch_groups"] - ledger["occupied"])
        under_way = ledger["reserved"]
        assert len(waits) == min(max(len(due), missing), under_way)
        assert {wait["group"] for wait in ledger["waits"] if wait["is_due"]} == due
        for wait in ledger["waits"]:
            assert wait["state"] == "scoring" or wait["members"], "a group that generates waits for responses"
        seen += len(waits)
    assert seen


def test_decisions_are_found_forward_and_back_and_say_why(browser):
    _, moment = browser.json(f"{RUN}/moment?event=30")
    _, after = browser.json(f"{RUN}/moment?event=30&seek=next")
    assert after["number"] > 30
    assert after["event"]["commands"]
    _, before = browser.json(f"{RUN}/moment?event={after['number'] + 1}&seek=last")
    assert before == after
    kinds, rules = {}, set()
    for number in range(10, moment["last"], 3):
        _, found = browser.json(f"{RUN}/why?event={number}")
        assert found["event"] == browser.json(f"{RUN}/moment?event={number}")[1]["event"]
        for decision in found["decisions"]:
            kinds.setdefault(decision["kind"], []).append(decision)
            rules.add(bool(decision["rule"]))
    assert {"routing", "admission", "pulls", "pacing"} <= kinds.keys()
    routed = [one for one in kinds["routing"] if one["answer"].startswith("to rollout-")]
    assert routed
    for one in routed:
        assert [f"to {name}" for name, _, _, is_chosen in one["rows"] if is_chosen] == [one["answer"]]


def test_the_first_moment_has_no_decision(browser):
    _, found = browser.json(f"{RUN}/why?event=0")
    assert found["decisions"] == []


def test_a_timeline_has_a_lane_for_each_worker(browser):
    _, found = browser.json(f"{RUN}/timeline")
    while found["passed"] < found["of"]:
        _, found = browser.json(f"{RUN}/timeline")
    assert [lane["name"] for lane in found["lanes"]] == ["trainer", "rollout-0", "rollout-1", "reward-0"]
    _, part = browser.json(f"{RUN}/timeline?begin=1&end=2.5&find=rollout")
    assert [lane["name"] for lane in part["lanes"]] == ["rollout-0", "rollout-1"]
    for lane in part["lanes"]:
        assert all(1 <= begin < end <= 2.5 for begin, end, _, _ in lane["spans"])


def test_a_group_has_its_life_in_bars(browser):
    _, found = browser.json(f"{RUN}/groups/3?step=1")
    bars = found["life"]["bars"]
    assert {bar["member"] for bar in bars} == {0, 1, 2, 3}
    for bar in bars:
        assert bar["begin_s"] <= bar["pieces"][0][0] <= bar["end_s"]
    assert any(what == "trained on" for _, what in found["life"]["marks"])
    assert found["life"]["lines"]
    assert found["samples"] == []


def test_metrics_are_columns_without_the_line_that_is_being_written(browser):
    _, found = browser.json(f"{RUN}/metrics")
    assert found["steps"]["step"] == [1, 2, 3, 4]
    assert found["evaluations"] == {}


def test_prometheus_reads_figures(browser):
    status, headers, body = browser.ask("/metrics")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain")
    assert b'staleflow_steps_total{run="run"} 4\n' in body


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        (f"{RUN}/now?event=x", 404, "is no moment"),
        (f"{RUN}/now?event=1e9", 404, "is no moment"),
        (f"{RUN}/timeline?begin=x", 404, "is no span of time"),
        (f"{RUN}/timeline?begin=0&end=inf", 404, "is no span of time"),
        (f"{RUN}/groups/999999", 404, "No event or command"),
        (f"{RUN}/samples/1/1", 404, "No sample of group 1 of step 1 is kept"),
        ("/api/runs/7/now", 404, "There is no run 7"),
        (f"{RUN}/moment?step={'9' * 5_000}", 404, "is no moment"),
        (f"/api/runs/{'9' * 5_000}/now", 404, "There is no run"),
        (f"{RUN}/groups/{'9' * 5_000}", 404, "No group and no step"),
        (f"{RUN}/samples/{'9' * 5_000}/1", 404, "No group and no step"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(browser, address, status, words):
    found = browser.json(address)
    assert found[0] == status
    assert words in found[1]["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"changes": {}, "at_s": 1%s}' % (b"0" * 400),
        b'{"changes": {}, "at_s": NaN}',
        b'{"changes": 3}',
    ],
)
def test_a_prediction_at_no_second_is_refused_in_a_sentence(browser, body):
    status, found = browser.json(f"{RUN}/whatif", method="POST", body=body)
    assert status == 400
    assert "seconds of the run" in found["error"]


def test_a_run_that_cannot_be_read_takes_no_other_one_from_prometheus(path, tmp_path):
    bad = recorded(tmp_path / "bad")
    (bad / "run.db").write_bytes((bad / "run.db").read_bytes()[:9_000])
    status, _, body = Browser(path, bad).ask("/metrics")
    assert status == 200
    assert b'staleflow_steps_total{run="run"} 4\n' in body
    assert b'staleflow_steps_total{run="bad"}' not in body
    assert b'staleflow_up{run="bad"} 0\n' in body
    assert b'staleflow_readable{run="run"} 1\nstaleflow_readable{run="bad"} 0\n' in body


def test_runs_of_the_same_name_are_told_apart_by_the_folder_that_they_are_in(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        recorded(tmp_path / folder / "run")
    both = Browser(tmp_path / "a" / "run", tmp_path / "b" / "run")
    _, _, body = both.ask("/metrics")
    assert b'staleflow_steps_total{run="a/run"} 4\nstaleflow_steps_total{run="b/run"} 4\n' in body
    assert [run["name"] for run in both.json("/api/runs")[1]["runs"]] == ["a/run", "b/run"]


def test_a_folder_whose_name_is_no_utf8_is_shown_with_escapes(tmp_path):
    odd = Browser(recorded(tmp_path / os.fsdecode(b"caf\xe9")))
    status, found = odd.json("/api/runs")
    assert status == 200
    assert found["runs"][0]["name"] == "caf\\udce9"
    assert found["runs"][0]["path"] == str(tmp_path / os.fsdecode(b"caf\xe9"))
    status, _, body = odd.ask("/metrics")
    assert status == 200
    assert b'staleflow_steps_total{run="caf\\\\udce9"} 4\n' in body
    status, found = Browser(tmp_path / os.fsdecode(b"\xe9")).json(f"{RUN}/now")
    assert status == 404
    assert "There is no run at" in found["error"]


@pytest.mark.parametrize("name", ["../site.py", "..%2fsite.py", "/etc/passwd", "uplot/../../access.py", ""])
def test_no_file_is_served_that_is_no_page(browser, name):
    status, _, body = browser.ask(f"/pages/{name}")
    assert status == 404
    assert b"import" not in body


def test_an_order_goes_to_the_run_and_its_answer_comes_back(path):
    given = []

    async def order(*words):
        given.append(words)
        if words[1] == "abort":
            raise ConfigError("There is no such group.")
        return "The run is paused."

    browser = Browser(path, order=order)
    body = b'{"action": "pause", "why": "lunch"}'
    assert browser.json(f"{RUN}/actions", method="POST", body=body) == (200, {"answer": "The run is paused."})
    assert given == [(str(path), "pause", "", "lunch")]
    refused = browser.json(f"{RUN}/actions", method="POST", body=b'{"action": "abort", "argument": 3}')
    assert refused == (409, {"error": "There is no such group."})
    half = b'{"action": "pause", "why": "\\ud800"}'
    for body in (b"", b"[]", b"7", b"[" * 60_000, half):
        assert browser.json(f"{RUN}/actions", method="POST", body=body)[0] == 400
    assert browser.ask(f"{RUN}/actions")[0] == 405
    assert len(given) == 2


def test_a_view_that_only_looks_gives_no_orders(browser):
    status, found = browser.json(f"{RUN}/actions", method="POST", body=b'{"action": "pause"}')
    assert status == 403
    assert "may only look" in found["error"]


def test_where_a_worker_stands_is_shown_to_who_may_act_and_else_refused_in_a_sentence(browser, path):
    async def order(*words):
        return ""

    body, refused = b'{"worker": "rollout-0"}', (403, {"error": "This view may only look (--read-only)."})
    assert browser.json(f"{RUN}/stacks", method="POST", body=body) == refused
    acting = Browser(path, order=order)
    status, found = acting.json(f"{RUN}/stacks", method="POST", body=body)
    assert status == 409
    assert "No controller is at work" in found["error"]
    for bad in (b"", b"[]", b"7", b"{}", b'"worker"', b"[" * 60_000):
        assert acting.json(f"{RUN}/stacks", method="POST", body=bad)[0] == 400
    assert acting.json("/api/runs/7/stacks", method="POST", body=body)[0] == 404
    foreign = {"host": "127.0.0.1:8470", "cookie": "staleflow_8470=secret"}
    assert acting.ask(f"{RUN}/stacks", method="POST", headers=foreign, body=body)[0] == 403


def test_orders_so_far_are_those_of_the_journal(tmp_path):
    run = recorded(tmp_path / "run")
    browser = Browser(run)
    assert browser.json(f"{RUN}/orders") == (200, {"orders": []})
    store = Store(run / "run.db")
    with store.transaction():
        for action in ("pause", "unpause"):
            store.append_events(
                9.0, [(Received(PeerId("a" * 32), Control(action, "", "anna@here", "lunch")), False)]
            )
    store.close()
    _, found = Browser(run).json(f"{RUN}/orders")
    assert [(one["action"], one["who"], one["why"]) for one in found["orders"]] == [
        ("unpause", "anna@here", "lunch"),
        ("pause", "anna@here", "lunch"),
    ]


def test_what_an_order_was_answered_is_told_with_its_event(tmp_path):
    run = recorded(tmp_path / "run")
    cut(run, 60)
    store = Store(run / "run.db")
    with store.transaction():
        store.append_events(
            99.0, [(Received(PeerId("a" * 32), Control("pause", "", "anna@here", "lunch")), False)]
        )
        store.append_events(99.0, [(Received(PeerId("a" * 32), DrainWorker("nobody")), False)])
    store.close()
    browser = Browser(run)
    last = browser.json(f"{RUN}/moment")[1]["last"]
    answers = [browser.json(f"{RUN}/moment?event={last - back}")[1]["event"]["answer"] for back in (2, 1, 0)]
    assert [answer and answer["is_refused"] for answer in answers] == [None, False, True]
    assert answers[1]["text"].startswith("The run is paused")
    assert "nobody" in answers[2]["text"]


def test_a_page_more_than_a_view_serves_is_told_so(path):
    browser = Browser(path)
    headers = {"host": "127.0.0.1:8470", "cookie": "staleflow_8470=secret"}
    for number in range(MOST):
        assert browser.ask(f"{RUN}/metrics", headers=headers | {PAGE: f"page{number}"})[0] == 200
    status, answered, body = browser.ask(f"{RUN}/metrics", headers=headers | {PAGE: "late"})
    assert status == 429
    assert f"{MOST} pages look at this view" in json.loads(body)["error"]
    assert answered[b"cache-control"] == b"no-store"
    assert browser.ask("/", headers=headers | {PAGE: "late"})[0] == 200, "the page can say so"
    assert browser.ask(f"{RUN}/metrics", headers=headers)[0] == 200, "a program is no page"


def test_what_nobody_meant_is_answered_with_a_status_and_changes_nothing(browser, path):
    before = (path / "run.db").read_bytes()
    dice = random.Random(1)
    for _ in range(150):
        words = "".join(chr(dice.choice([*range(33, 127), 200, 0x131])) for _ in range(dice.randint(1, 30)))
        asked = dice.choice(
            [f"/{words}", f"{RUN}/{words}", f"{RUN}/groups/{words}", f"{RUN}/now?event={words}"]
        )
        asked = asked.encode("latin-1", "replace").decode("latin-1").replace("#", "")
        status, _, _ = browser.ask(asked, method=dice.choice(["GET", "POST", "PUT", "HEAD"]))
        assert 200 <= status < 500, asked
    assert (path / "run.db").read_bytes() == before


def test_a_damaged_line_of_metrics_is_named_on_now_and_takes_no_other_page_along(tmp_path):
    run = recorded(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ne"}\nnull\n')
    damaged = Browser(run)
    status, now = damaged.json(f"{RUN}/now")
    assert (status, now["steps"]) == (200, 4)
    assert "metrics.jsonl" in now["alarms"][0]["evidence"]
    assert damaged.json(f"{RUN}/ledger")[0] == 200
    status, metrics = damaged.json(f"{RUN}/metrics")
    assert status == 404
    assert "Look at the disk" in metrics["error"]
