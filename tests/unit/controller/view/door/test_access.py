"""The door of the view: token, Host, Origin."""

import pytest

from controller.view.door.access import ACTING, HEADERS, MOST_BODY_BYTES, Access, Asked

ACCESS = Access(host="127.0.0.1", port=8470, token="secret")
OWN = {"host": "127.0.0.1:8470"}
WITH_TOKEN = {**OWN, "cookie": "staleflow_8470=secret"}


def status(method="GET", query="", headers=None):
    denied = ACCESS.objection(Asked(method, query, WITH_TOKEN if headers is None else headers))
    return denied.status if denied else 200


@pytest.mark.parametrize(
    ("headers", "query", "expected"),
    [
        (WITH_TOKEN, "", 200),
        ({**OWN, "authorization": "Bearer secret"}, "", 200),
        (OWN, "token=secret", 200),
        ({"host": "localhost:8470", "cookie": "other=1; staleflow_8470=secret"}, "", 200),
        (OWN, "", 401),
        (OWN, "token=", 401),
        (OWN, "token=Secret", 401),
        ({**OWN, "authorization": "Basic secret"}, "", 401),
        ({**OWN, "cookie": "staleflow_8471=secret"}, "", 401),
        ({**OWN, "cookie": '="\x01;;'}, "", 401),
        ({**WITH_TOKEN, "host": "evil.example:8470"}, "", 403),
        ({**WITH_TOKEN, "host": "127.0.0.1:8471"}, "", 403),
        ({"cookie": "staleflow_8470=secret"}, "", 403),
    ],
)
def test_who_has_no_token_or_another_host_is_not_answered(headers, query, expected):
    assert status(query=query, headers=headers) == expected


@pytest.mark.parametrize(("port", "expected"), [(80, None), (8470, 403)])
def test_at_the_port_of_http_a_browser_names_none(port, expected):
    access = Access(host="127.0.0.1", port=port, token="secret")
    told = {"host": "127.0.0.1", "cookie": f"staleflow_{port}=secret", ACTING: "1"}
    denied = access.objection(Asked("POST", "", told | {"origin": "http://127.0.0.1"}))
    assert (denied and denied.status) == expected


def test_who_comes_through_a_tunnel_from_another_port_is_told_what_to_do():
    denied = ACCESS.objection(Asked("GET", "token=secret", {"host": "localhost:9000"}))
    assert denied.reason == (
        "This is 127.0.0.1:8470, and not 'localhost:9000'. Through a tunnel, have its port on both sides: "
        "ssh -L 8470:127.0.0.1:8470 USER@THIS_MACHINE."
    )


@pytest.mark.parametrize(
    "other",
    [
        'prefs={"theme":"dark"}',
        "user[id]=3",
        "path=/x",
        "domain=a",
        "a=b c",
        'name="a',
        "\xfc=1",
        "a",
        "=",
        "",
    ],
)
def test_cookies_of_other_programs_on_this_host_lock_nobody_out(other):
    for cookie in (f"{other}; staleflow_8470=secret", f"staleflow_8470=secret; {other}"):
        assert status(headers={**OWN, "cookie": cookie}) == 200, cookie
        assert status(headers={**OWN, "cookie": cookie.replace("secret", "wrong")}) == 401


def test_one_cookie_of_two_with_the_same_name_is_enough():
    assert status(headers={**OWN, "cookie": "staleflow_8470=old; staleflow_8470=secret"}) == 200


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({ACTING: "1"}, 200),
        ({ACTING: "1", "origin": "http://localhost:8470"}, 200),
        ({}, 403),
        ({ACTING: "1", "origin": "http://evil.example"}, 403),
        ({ACTING: "1", "origin": "null"}, 403),
        ({ACTING: "1", "content-length": str(MOST_BODY_BYTES + 1)}, 413),
        ({ACTING: "1", "content-length": "-5"}, 400),
    ],
)
def test_a_foreign_page_cannot_act(more, expected):
    assert status("POST", headers={**WITH_TOKEN, **more}) == expected


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites():
    assert ACCESS.set_cookie() == "staleflow_8470=secret; Path=/; HttpOnly; SameSite=Strict"
    assert ACCESS.brings_token(Asked("GET", "token=secret", OWN))


def test_a_token_is_made_anew_each_time():
    assert len({Access(host="127.0.0.1", port=1).token for _ in range(20)}) == 20
    assert len(Access(host="127.0.0.1", port=1).token) >= 43


def test_answers_allow_no_foreign_script_and_no_frame():
    policy = HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
