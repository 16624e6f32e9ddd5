"""Every message that somebody may say has a hearer. A failure says where to add it."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from protocol.messages import FROM_WORKER, KINDS, MAY_SAY, ROLES, TO_WORKER, ToAnyRole

ROOT = Path(__file__).resolve().parents[2]
CORE = "controller/core/hearing.py"
LADDERS = {
    "rollout": "_from_instance",
    "reward": "_from_text_worker",
    "trainer": "_from_trainer",
    "agent": "_from_agent",
}
SIMULATED = {"rollout": "rollout", "reward": "text", "trainer": "trainer", "agent": "agent"}
ELSEWHERE = {
    "core": ("controller/core/core.py", "_received"),
    "shell": ("controller/host/shell.py", "_on_message"),
    "server": ("protocol/wire/server.py", "_take"),
    "link": ("workers/link/link.py", "_take", "attach"),
    "host": ("workers/host/find_model.py", "find_model"),
}  # who hears strangers, and what is for every role: by `isinstance`


def function(file: str, name: str) -> ast.AST:
    tree = ast.parse((ROOT / file).read_text())
    (found,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return found


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def ladder(file: str, name: str) -> tuple[list[str], str]:
    """The classes that the `match` of a function has an unguarded case for, and what `case _` calls."""
    (match,) = [node for node in ast.walk(function(file, name)) if isinstance(node, ast.Match)]
    heard: list[str] = []
    rest = ""
    for case in match.cases:
        kinds = case.pattern.patterns if isinstance(case.pattern, ast.MatchOr) else [case.pattern]
        if case.guard is None:
            heard += [last_name(kind.cls) for kind in kinds if isinstance(kind, ast.MatchClass)]
        if isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
            calls = [node for node in ast.walk(case.body[0]) if isinstance(node, ast.Call)]
            rest = last_name(calls[0].func) if calls else ""
    return heard, rest


def asked_for(file: str, *names: str) -> set[str]:
    """The classes that functions look for with `isinstance`."""
    calls = [node for name in names for node in ast.walk(function(file, name)) if isinstance(node, ast.Call)]
    tests = [call.args[1] for call in calls if last_name(call.func) == "isinstance"]
    return {last_name(node) for test in tests for node in ast.walk(test) if isinstance(node, ast.expr)}


def hold(wanted: set[str], heard: list[str], where: str, how: str) -> None:
    twice = [name for name, count in Counter(heard).items() if count > 1]
    assert not twice, f"{where} has two cases for {twice}: the second one is never reached"
    missing, surplus = wanted - set(heard), set(heard) - wanted
    assert not missing, f"{sorted(missing)} may come to {where}, which has no case for it: {how}"
    assert not surplus, (
        f"{where} has a case for {sorted(surplus)}, which never comes there: take the case out, or name the "
        "role in `said_by` or `heard_by` of the class"
    )


@pytest.mark.parametrize("role", ROLES)
def test_the_core_hears_what_a_role_may_say(role):
    own, rest = ladder(CORE, LADDERS[role])
    common, end = ladder(CORE, "_from_any_role")
    wanted = {kind.__name__ for kind in MAY_SAY[role]}
    where = f"{LADDERS[role]} of {CORE}"
    hold(wanted, own + common, where, "add `case messages.NAME():` that hands it to the part that decides")
    assert (rest, end) == ("_from_any_role", "assert_never"), f"{where}: end it with `case _:` as it was"


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_hears_what_its_role_is_told(role):
    heard, end = ladder(f"workers/{role}/worker.py", "_handle")
    wanted = {kind.__name__ for kind in TO_WORKER if role in kind.heard_by}
    hold(wanted, heard, f"_handle of workers/{role}/worker.py", "add a case that obeys it")
    assert end == "assert_never", (
        f"workers/{role}/worker.py: end `_handle` with `case _: assert_never(order)`"
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_simulated_worker_hears_what_its_role_is_told(role):
    file = f"workers/simulated/{SIMULATED[role]}.py"
    heard, rest = ladder(file, "handle")
    common, end = ladder("workers/simulated/link.py", "taken_by_link")
    wanted = {kind.__name__ for kind in (*TO_WORKER,) if role in kind.heard_by}
    how = "add a case that answers it in virtual time, or passes over it and says why"
    hold(wanted | {kind.__name__ for kind in ToAnyRole.__args__}, heard + common, f"handle of {file}", how)
    assert (rest, end) == ("taken_by_link", "assert_never"), f"{file}: end `handle` with `case _:` as it was"


@pytest.mark.parametrize("party", ELSEWHERE)
def test_what_is_for_no_role_is_heard_by_name(party):
    file, *names = ELSEWHERE[party]
    kinds = [kind for kind in KINDS.values() if party in kind.heard_by]
    if party == "core":
        kinds = [kind for kind in kinds if kind.said_by == ("stranger",)]
    missing = {kind.__name__ for kind in kinds} - asked_for(file, *names)
    assert not missing, f"{sorted(missing)} comes to {' and '.join(names)} of {file}: look for it there"


def test_the_door_knows_whose_payload_is_kept():
    kinds = [kind for kind in FROM_WORKER if "kept" in vars(kind) and set(kind.said_by) != {"reward"}]
    missing = {kind.__name__ for kind in kinds} - asked_for(
        "controller/core/wanted_payload.py", "keeps_payload"
    )
    assert not missing, (
        f"{sorted(missing)} brings payload, which `wanted_payload.keeps_payload` would throw away: say there "
        "of which orders it is kept"
    )
