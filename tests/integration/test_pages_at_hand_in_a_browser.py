"""The view in a real browser: pages that are typed into, zoomed, resized and led astray stay of use."""

import os

from controller.core.events import Received
from controller.durability.store import Store
from protocol.ids import PeerId
from protocol.messages import Control, DrainWorker
from tests.support.chromium import (
    LIMIT_MS,
    browser,
    link,
    needs_chromium,
    open_tab,
    page,
    playwright,
    viewed,
    wait_for,
)
from tests.support.shown_run import cut, recorded

__all__ = ["browser", "link", "page"]  # fixtures
pytestmark = needs_chromium


def opened(browser, link, address, **more):
    """A page of its own at an address of the view, where the browser may complain."""
    base, token = link
    found = browser.new_page(**({"viewport": {"width": 1280, "height": 800}} | more))
    found.set_default_timeout(LIMIT_MS)
    found.goto(f"{base}?token={token}{address}")
    found.wait_for_selector("#page[data-page] section")
    return found


def changed(page, address, change):
    """Let the page hear what `change` makes of the true answer at that address."""

    def answer(route):
        found = route.fetch().json()
        change(found)
        route.fulfill(json=found)

    page.route(address, answer)


def test_from_a_group_the_same_prompt_is_followed_over_time(page):
    page.evaluate("location.hash = '#group?run=0&group=5'")
    page.click("a:has-text('the same prompt over time')")
    playwright.expect(page.locator(".hits tbody tr td:first-child")).to_have_text(["1", "1", "2"])
    assert page.locator("nav a[aria-current]").inner_text() == "Samples"


def test_a_group_that_nobody_knows_is_said_beside_the_form(browser, link):
    page = opened(browser, link, "#group?run=0&group=999999")
    page.locator("#page [role=alert]", has_text="999999").wait_for()
    number = page.locator("input[name=group]")
    assert number.input_value() == "999999"
    number.fill("")
    page.click("button:text-is('Show')")
    assert "group=999999" in page.url, "no number is no group"
    number.fill("3")
    page.click("button:text-is('Show')")
    page.wait_for_selector("svg rect")
    page.evaluate("location.hash = '#group?run=0&group='")
    wait_for(page, "The number of a prompt")
    page.close()


def test_the_ledger_of_a_run_that_is_over_has_no_free_places_and_waits_for_nothing(page):
    open_tab(page, "Ledger")
    wait_for(page, "The run is over after 4 steps")
    assert page.locator(".place.free").count() == 0
    for words in ("waits for", "may start"):
        assert words not in page.locator("section").first.inner_text()
    page.evaluate("location.hash = '#ledger?run=0&at=40'")
    wait_for(page, "The next step waits for")


def test_scored_groups_that_an_earlier_batch_takes_are_said_to_be_drawn_elsewhere(page):
    def late(ledger):
        ledger["state"] = "live"
        cell = {"state": "occupied", "version": 1, "done": 1, "finished": 4, "size": 4, "queued": 0}
        cell |= {"tokens": 9, "is_blocker": False}
        batch = {"state": "READY", "reserved": 0, "free": 0}
        ledger["columns"] = [
            batch | {"train_version": 4, "occupied": 3, "groups": [cell | {"id": 1}]},
            batch | {"train_version": 5, "occupied": 0, "groups": [cell | {"id": 2}, cell | {"id": 3}]},
        ]

    changed(page, "**/ledger*", late)
    open_tab(page, "Ledger")
    wait_for(page, "takes 3 scored, of which 2 stand in a later column, that of their deadline")
    page.unroute_all(behavior="wait")


def test_an_order_is_answered_where_it_was_given_and_those_so_far_follow_the_run(browser, tmp_path):
    run = recorded(tmp_path / "run")
    cut(run, 60)
    (run / "summary.json").unlink()
    (tmp_path / ".run.lock").write_text(str(os.getpid()))  # as if this process were its controller

    def said(*orders):
        store = Store(run / "run.db")
        with store.transaction():
            for order in orders:
                store.append_events(99.0, [(Received(PeerId("a" * 32), order), False)])
        store.close()

    with viewed(run) as (base, token):
        page = opened(browser, (base, token), "#controls?run=0", viewport={"width": 1280, "height": 600})
        page.on("dialog", lambda dialog: dialog.accept())
        wait_for(page, "None.")
        said(Control("pause", "", "anna@here", "lunch " + "w" * 400), DrainWorker("nobody"))
        rows = page.locator("section", has_text="Orders so far").locator("tbody tr")
        playwright.expect(rows).to_have_count(2)
        playwright.expect(rows.filter(has_text="lunch")).to_contain_text(
            "The run is paused", timeout=LIMIT_MS
        )
        playwright.expect(rows.filter(has_text="drain")).to_contain_text("refused: ", timeout=LIMIT_MS)
        second = rows.filter(has_text="lunch").locator("td").nth(1)
        assert second.inner_text() == "1 min 39 s"
        assert second.locator("span").evaluate("(words) => words.getClientRects().length") == 1
        card = page.locator("section", has=page.get_by_role("heading", name="Change a live key"))
        card.locator("input[name=argument]").fill(" samples.groups = 6 ")
        card.locator("button").click()
        answer = card.locator("[role=status]")
        playwright.expect(answer).to_have_class("bad")
        button, box = card.locator("button").bounding_box(), answer.bounding_box()
        assert "samples.groups" not in answer.inner_text(), "the key is understood; nobody is there to obey"
        assert 0 <= box["y"] < 600
        assert abs(box["y"] - button["y"]) < 2 * button["height"]
        page.close()


def test_answers_of_a_run_that_is_over_come_when_the_journal_is_read_as_far(browser, tmp_path):
    run = recorded(tmp_path / "run")
    cut(run, 60)
    store = Store(run / "run.db")
    with store.transaction():
        store.append_events(99.0, [(Received(PeerId("a" * 32), DrainWorker("nobody")), False)])
    store.close()
    looks = []

    def late(route):
        looks.append(route.request.url)
        if len(looks) > 1:
            return route.continue_()
        return route.fulfill(status=202, json={"reading": {"number": 1, "last": 60}, "said": {}})

    with viewed(run) as (base, token):
        page = opened(browser, (base, token), "#now?run=0")
        page.route("**/moment?event=*", late)
        open_tab(page, "Controls")
        rows = page.locator("section", has_text="Orders so far").locator("tbody tr")
        playwright.expect(rows).to_contain_text("refused: ", timeout=LIMIT_MS)
        assert len(looks) > 1
        page.close()


SPAN = "Number(new URLSearchParams(location.hash.split('?')[1]).get('{}'))"
WHEEL = """([key, deltaX, deltaY, times]) => {
    const view = document.querySelector('canvas.timeline[style*=width]'); // which is drawn
    for (let tick = 0; view && tick < times; tick += 1)
        view.dispatchEvent(
            new WheelEvent('wheel', { deltaX, deltaY, [key]: true, clientX: 600, cancelable: true }));
    return Boolean(view);
}"""


def width_of(page):
    """Seconds of the timeline that the address asks for."""
    return page.evaluate(f"{SPAN.format('end')} - {SPAN.format('begin')}")


def test_quick_turns_of_the_wheel_add_up_and_a_sideways_wheel_zooms_both_ways(page):
    open_tab(page, "Timeline")
    assert "ctrl" in page.inner_text("output.dim")
    whole_s = page.evaluate("fetch('/api/runs/0/timeline').then((answer) => answer.json())")["until_s"]
    page.wait_for_function(WHEEL, arg=["ctrlKey", 0, -100, 5])
    page.wait_for_url("**begin=**")
    assert abs(width_of(page) - whole_s / 1.5**5) < 0.01
    page.wait_for_function(WHEEL, arg=["shiftKey", 100, 0, 2])
    assert abs(width_of(page) - whole_s / 1.5**3) < 0.01
    page.wait_for_function(WHEEL, arg=["shiftKey", -100, 0, 1])
    assert abs(width_of(page) - whole_s / 1.5**4) < 0.01


def test_a_span_that_is_none_of_the_run_is_said_and_the_whole_run_is_shown(browser, link):
    for words in ("begin=3&end=2", "begin=9999999&end=99999999", "begin=some&end=more"):
        page = opened(browser, link, f"#timeline?run=0&{words}")
        page.locator("#page [role=alert]", has_text="is no span of this run").wait_for()
        assert page.locator("canvas.timeline").count() == 1
        assert not page.is_visible("#trouble")
        page.close()


def test_a_late_moment_takes_nobody_from_where_they_have_gone(page):
    open_tab(page, "Timeline")
    page.wait_for_selector("canvas.timeline[style*=width]")
    asked = {
        "**/moment?second=*": lambda: page.locator("canvas.timeline").click(position={"x": 400, "y": 30}),
        "**/moment?*seek=last": lambda: page.click("#undecide"),
        "**/moment?step=2": lambda: page.fill("#step", "2") or page.press("#step", "Enter"),
    }
    held = []
    for (address, act), name in zip(asked.items(), ("Metrics", "Why", "Compare"), strict=True):
        page.route(address, lambda route: held.append(route))
        with page.expect_request(address):
            act()
        open_tab(page, name)
        with page.expect_response(address):
            held.pop().continue_()
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert page.locator("nav a[aria-current]").inner_text() == name
        assert "at=" not in page.url
    page.unroute_all(behavior="wait")


PIXELS = "view.getContext('2d').getImageData(0, 0, view.width, view.height).data"


def assert_follows_theme(page, canvas):
    """That what is drawn there is drawn anew in another theme."""
    view = page.wait_for_selector(canvas)
    page.wait_for_function(f"(view) => {PIXELS}.some((one) => one)", arg=view)
    page.evaluate(f"(view) => {{ window.before = {PIXELS}.join(); }}", view)
    page.emulate_media(color_scheme="dark")
    again = f"(() => {{ const view = document.querySelector({canvas!r}); return view ? {PIXELS} : []; }})()"
    page.wait_for_function(f"() => {again}.some((one) => one) && {again}.join() !== window.before")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {again}.join() === window.before")


def test_what_is_drawn_follows_the_theme(page):
    open_tab(page, "Timeline")
    assert_follows_theme(page, "canvas.timeline")
    open_tab(page, "Metrics")
    assert_follows_theme(page, ".heats canvas")
    assert_follows_theme(page, ".plot canvas")
    open_tab(page, "Compare")
    assert_follows_theme(page, ".plot canvas")


def test_a_comparison_may_have_no_run_and_no_metric_and_a_name_with_a_space(page):
    changed(page, "**/metrics", lambda found: found["steps"].update({"reward/my reward": [1, 2, 3, 4]}))
    open_tab(page, "Compare")
    plots, on = page.locator(".plot"), page.locator("#page button[aria-pressed=true]")
    page.select_option("select[aria-label='add a metric']", "reward/my reward")
    page.locator(".plot h3", has_text="reward/my reward").wait_for()
    page.evaluate("location.hash = '#compare?run=0&keys=loss'")
    playwright.expect(plots).to_have_count(1)
    page.click("button[aria-label='leave loss out']")
    playwright.expect(plots).to_have_count(0)
    on.first.click()
    playwright.expect(on).to_have_count(1)
    on.first.click()
    playwright.expect(on).to_have_count(0)
    wait_for(page, "No run is chosen")
    page.unroute_all(behavior="wait")


def test_a_metric_may_be_called_as_what_every_object_has(page):
    changed(page, "**/metrics", lambda found: found["steps"].update({"constructor": [1, 2, 3, 4]}))
    page.evaluate("location.hash = '#metrics?find=constructor'")
    page.locator(".plot h3", has_text="constructor").wait_for()
    page.evaluate("location.hash = '#compare?keys=constructor'")
    page.locator(".plot h3", has_text="constructor").wait_for()
    page.unroute_all(behavior="wait")


def test_a_long_name_and_a_narrow_window_make_no_page_wider(page):
    def named(found):
        found["runs"][0]["name"] = "L" * 120

    changed(page, "**/api/runs", named)
    changed(page, "**/metrics", lambda found: found["steps"].update({"reward/" + "k" * 90: [1, 2, 3, 4]}))
    page.set_viewport_size({"width": 400, "height": 800})
    page.reload()
    for name in ("Now", "Metrics", "Compare"):
        open_tab(page, name)
        page.wait_for_selector("#page section")
        if name != "Now":
            page.wait_for_selector(".plot canvas")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        wide = "[...document.querySelectorAll('.plots, .plot, .plot h3')].filter((one) => "
        assert page.evaluate(f"{wide} one.scrollWidth > one.clientWidth + 1).length") == 0, name
    page.unroute_all(behavior="wait")


def test_curves_are_as_wide_as_their_place_in_a_window_that_changes(page):
    for name in ("Metrics", "Compare"):
        open_tab(page, name)
        page.wait_for_selector(".plot .uplot")
        for width in (620, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function("""() => {
                const drawn = document.querySelector('.plot .uplot');
                const wide = drawn?.getBoundingClientRect().width;
                return drawn && Math.abs(wide - drawn.parentElement.clientWidth) <= 1;
            }""")  # fmt: skip


LONG = 6_000  # tokens of a response
LISTS = ("texts", "versions", "logprobs", "drifts", "weights")


def test_of_long_responses_only_what_is_in_sight_is_drawn_token_by_token(page):
    def longer(sample):
        one = sample["responses"][0]
        lists = {name: (one[name] * LONG)[:LONG] for name in LISTS}
        sample["responses"] = [one | lists | {"member": member} for member in range(16)]

    changed(page, "**/samples/1/5", longer)
    page.evaluate("location.hash = '#samples?run=0&step=1&group=5'")
    page.locator(".response", has_text=f"{LONG} tokens").first.wait_for()
    tokens = page.locator(".response .text span[title]")
    tokens.first.wait_for()
    assert tokens.count() < LONG
    last = page.locator(".response").last
    words = last.locator(".text").evaluate("(text) => text.textContent.length")
    assert last.locator(".text span[title]").count() == 0
    last.evaluate("(response) => response.scrollIntoView({ block: 'end' })")
    last.locator(".text span[title^='v']").last.wait_for()
    assert last.locator(".text").evaluate("(text) => text.textContent.length") == words
    page.unroute_all(behavior="wait")


def test_the_legend_of_the_timeline_tells_apart_what_is_drawn_apart_and_no_more(page):
    open_tab(page, "Timeline")
    swatch = page.locator(".legend span", has=page.locator("i"))
    colours = {
        kind: swatch.filter(has_text=kind).first.locator("i").evaluate(
            "(one) => getComputedStyle(one).backgroundColor"
        )
        for kind in ("encoding", "scoring")
    }  # fmt: skip
    assert colours["encoding"] != colours["scoring"]
    assert "coloured by policy version" in page.inner_text(".legend")

    def binned(found):
        for lane in found["lanes"]:
            lane |= {"bins": [0] * 240, "fullness": [1] * 240}
            del lane["spans"]

    changed(page, "**/api/runs/0/timeline*", binned)
    page.reload()
    page.locator(".legend", has_text="in one colour in lanes with too many spans").wait_for()
    page.unroute_all(behavior="wait")


def test_one_version_is_no_plural(page):
    counts = {"trajectories": [[9, 1], [5, 5]], "tokens": [[0, 9], [99, 1]]}
    changed(page, "**/ages", lambda found: found.update(counts, steps=[[1, 1], [2, 2]], is_cut=False))
    open_tab(page, "Metrics")
    page.locator(".heats canvas").first.hover(position={"x": 200, "y": 10})
    page.locator(".heats output", has_text=", 1 version old").wait_for()
    page.unroute_all(behavior="wait")


CONTRASTS = """() => {
    const light = (words) => {
        const [red, green, blue] = words.match(/[\\d.]+/g).slice(0, 3).map((one) => {
            const share = Number(one) / 255;
            return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    return [...document.querySelectorAll('.legend i')].filter((one) => one.style.background).map((one) => {
        const of = (element) => light(getComputedStyle(element).backgroundColor) + 0.05;
        const pair = [of(one), of(one.closest('.card'))];
        return [one.parentElement.textContent, Math.max(...pair) / Math.min(...pair)];
    });
}"""


def test_each_colour_of_a_legend_is_seen_on_its_card(page):
    changed(page, "**/api/runs/0/starts*", lambda found: found["seconds"].update(ending=9.0))
    changed(page, "**/api/runs/0/now*", lambda found: found["spent_s"].update({"start-up": 9.0}))
    for name, words in (("Ledger", "the run ends"), ("Now", "start-up")):
        open_tab(page, name)
        page.locator(".legend", has_text=words).first.wait_for()
        found = page.evaluate(CONTRASTS)
        assert found
        assert not [(words, contrast) for words, contrast in found if contrast < 3], name
    page.unroute_all(behavior="wait")
