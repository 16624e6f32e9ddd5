"""The data of pages that show a core at one moment, as plain values for JSON.

Invariants: pure, and nothing is changed; every number is the core's own; a group of any size comes out as a
few hundred bytes, so that thousands of them are one answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import Any

from controller.core.commands import Send
from controller.core.core import Core
from controller.core.events import Received
from controller.core.state.batches.counting_ledger import CountingLedger
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance, TextWorker
from controller.core.waiting_for import next_step
from controller.durability.replay import Replayed, in_words, kind, shortened
from controller.durability.sample_records import mean_advantage
from controller.view.critical_path import Awaited, awaited_groups, batch_left_s, expected, indispensable
from controller.view.written import at_most, is_number
from protocol.messages import Close, Control, DrainWorker

MOST_WAITS = 40
MOST_MEMBERS = 8  # of one group that are told one by one
MOST_COMMANDS = 50
MOST_WORKERS = 64  # of more, those that something is nearest to happen to, and sums by role
OF_MACHINES = ("throughput/", "compute/", "phase/", "memory/")  # in metrics.jsonl
OF_LEARNING = (
    "reward/mean", "episode/", "episodes/", "ending/", "environment/", "agent/forks/", "kv/", "turn/",
)  # fmt: skip
RECENT = 20  # steps
Json = dict[str, Any]


def now_of(core: Core) -> Json:
    """The headline of the run, its workers, and where its tokens and seconds went."""
    seen, state = core.snapshot(), core.state
    summary = core.summary()
    return {
        "now_s": seen.now_s,
        "steps": seen.steps,
        "steps_wanted": state.config.run.steps,
        "train_version": seen.train_version,
        "published_version": seen.published_version,
        "epoch": state.epoch,
        "waiting_for": seen.waiting_for,
        "idle_because": seen.idle_because,
        "paused": seen.paused,
        "evaluating": seen.evaluating,
        "ending": state.ending or "",
        "is_over": state.finished,
        "is_success": state.ending_is_success,
        "verdict": summary.get("verdict", ""),
        "spent_s": dict(sorted(state.accounts.spent_s.items())),
        "tokens": _fields(seen.tokens),
        "groups": seen.groups,
        "queued": seen.queued,
        "ages": {str(age): count for age, count in sorted(state.accounts.ages.items())},
        "violations": state.accounts.violations,
        "max_staleness": state.config.staleness.max_staleness,
        "oldest_group": None if seen.oldest_group is None else _fields(seen.oldest_group),
        "workers": [_fields(worker) for worker in seen.workers],
        "mean_step_s": _mean_step_s(core),
    }


def workers_of(workers: Sequence[Json], wanted: str) -> Json:
    """The table of workers with this in their names, no longer than a page can be read; and sums by role.

    Of too many those come first that owe an answer, the soonest due before others, then the longest silent.
    """
    found = [worker for worker in workers if wanted.lower() in worker["name"].lower()]
    most = len(found) > MOST_WORKERS
    return {
        "workers": nsmallest(MOST_WORKERS, found, key=_urgency) if most else found,
        "workers_found": len(found),
        "roles": _roles(workers) if len(workers) > MOST_WORKERS else [],
    }


def _urgency(worker: Json) -> tuple[float, float, str]:
    return (inf if worker["due_s"] is None else worker["due_s"]), -worker["silent_s"], worker["name"]


def _roles(workers: Sequence[Json]) -> list[Json]:
    found: dict[str, Json] = {}
    for worker in workers:
        start: Json = {"role": worker["role"], "workers": 0, "ready": 0, "running": 0, "tokens": 0}
        role = found.setdefault(worker["role"], start | {"versions": {}, "silent_s": 0.0, "resident_mb": 0})
        role["workers"] += 1
        role["ready"] += worker["ready"]
        role["running"] += worker["running"]
        role["tokens"] += worker["resident_tokens"]
        if worker["policy_version"] >= 0:
            version = str(worker["policy_version"])
            role["versions"][version] = role["versions"].get(version, 0) + 1
        for most in ("silent_s", "resident_mb"):
            role[most] = max(role[most], worker[most])
    return list(found.values())


def figures_of(lines: Sequence[Mapping[str, Any]], step: int) -> dict[str, float]:
    """What Now and Prometheus tell of the newest of some lines of metrics.jsonl up to this step.

    Its reward, speed, arithmetic, memory and phases, and what it says of an agent's episodes.
    """
    newest = next((line for line in reversed(lines) if at_most(line, "step", step)), {})
    told = OF_MACHINES + OF_LEARNING
    return {key: value for key, value in newest.items() if key.startswith(told) and is_number(value)}


def recent_of(lines: Sequence[Mapping[str, Any]], step: int) -> Json:
    """The number of the last steps up to this one, and the shares of their time by what they waited for.

    If the seconds of one step are not known, all steps count alike.
    """
    reached = (line for line in reversed(lines) if at_most(line, "step", step))
    found = [*islice(reached, RECENT + 1)]
    newest = found[:RECENT]
    known = [_seconds(line, before) for line, before in zip(newest, [*found[1:], {}], strict=False)]
    seconds = [held for held in known if held is not None]
    weights = seconds if len(seconds) == len(newest) else [1.0] * len(newest)
    shares: dict[str, float] = {}
    for line, weight in zip(newest, weights, strict=True):
        for key, share in line.items():
            if key.startswith("phase/") and is_number(share):
                shares[key] = shares.get(key, 0.0) + share * weight / sum(weights)
    return {"steps": len(newest), "phases": shares}


def _seconds(line: Mapping[str, Any], before: Mapping[str, Any]) -> float | None:
    """How long a step took, by its line and that of the step before; None if they do not say."""
    end, begin = line.get("time_s"), before.get("time_s", 0.0 if line.get("step") == 1 else None)
    return float(end - begin) if is_number(end) and is_number(begin) and end > begin else None


def ledger_of(core: Core) -> Json:
    """One column per batch of the window, with its groups and free places, and who waits for whom."""
    state, ledger = core.state, core.state.ledger
    blockers = indispensable(core)
    columns: list[Json] = []
    by_due: dict[int, list[Group]] = {}
    is_bound = not isinstance(ledger, CountingLedger)  # else there is one column, of all that may be taken
    for group in state.groups.values():
        if not group.is_evaluation and group.id in ledger:
            due = ledger.deadline(group.id) if is_bound else ledger.train_version
            by_due.setdefault(due, []).append(group)
    for buffer in ledger.buffers():
        groups = sorted(by_due.pop(buffer.train_version, ()), key=_nearness)
        columns.append({**_fields(buffer), "groups": [_cell(core, group, blockers) for group in groups]})
    late = [group for groups in by_due.values() for group in groups]
    awaited = awaited_groups(core)
    return {
        "batch_groups": ledger.batch_groups,
        "max_staleness": ledger.max_staleness,
        "train_version": ledger.train_version,
        "reserved": ledger.reserved,
        "occupied": ledger.occupied,
        "columns": columns,
        "others": [_cell(core, group, blockers) for group in late],
        "training": {
            "train_version": state.steps,
            "groups": [_cell(core, state.groups[id], blockers) for id in core.training.batch],
            "ahead": list(core.training.trainer_batches.ahead),
        },
        "fresh": len(state.fresh),
        "waits": [_wait(core, one) for one in awaited[:MOST_WAITS]],
        "left_s": batch_left_s(core, awaited),
        "waiting_for": next_step(core),
    }


def group_of(core: Core, number: int) -> Json | None:
    """One group and its responses as they stand; None if it is not in the system."""
    group = core.state.groups.get(number)
    if group is None:
        return None
    numbers = list(group.places)
    rewards = dict(zip(numbers, group.rewards, strict=False))
    trained = group.contribution.items if group.contribution else ()
    advantages = {item.member: mean_advantage(item._asdict()) for item in trained}
    ledger = core.state.ledger
    due = ledger.deadline(number) if number in ledger and ledger.is_strict else None
    return {
        "id": number,
        "state": group.state,
        "policy_version": group.policy_version,
        "due": due,
        "prompt_tokens": group.prompt_tokens,
        "starts": group.starts,
        "members": [
            {
                "member": member.id.member,
                "state": member.state,
                "attempt": member.attempt,
                "where": _where(core, member),
                "segments": [list(segment) for segment in member.segments],
                "tokens": member.response_tokens,
                "expected": core.state.expected_tokens(group, member),
                "ending": member.ending,
                "reward": rewards.get(group.response_of(member)),
                "advantage": advantages.get(member.id.member),
            }
            for member in group.members
            if member.state != "dropped" or member.attempt  # else the number is of no trajectory
        ],
    }


def event_of(core: Core, turn: Replayed | None) -> Json | None:
    """One event in words, and the commands that it gave; who is attached is called by name.

    `answer`: what an operator was told, where the event is an order; else None.
    """
    if turn is None:
        return None
    names = {worker.peer: worker.name for worker in core.state.registry.workers.values()}

    def named(text: str) -> str:
        for peer, name in names.items():
            text = text.replace(peer, name)
        return text

    shown = [
        f"{kind(command)} {named(shortened(repr(command)))}" for command in turn.commands[:MOST_COMMANDS]
    ]
    return {
        "number": turn.recorded.number,
        "text": named(in_words(turn.recorded)),
        "commands": shown,
        "more": max(0, len(turn.commands) - MOST_COMMANDS),
        "answer": _answer(turn),
    }


def _answer(turn: Replayed) -> Json | None:
    """The answer to an operator's order, and whether it was refused."""
    event = turn.recorded.event
    if not isinstance(event, Received) or not isinstance(event.message, (Control, DrainWorker)):
        return None
    for command in turn.commands:
        match command:
            case Send(peer, Close(reason, is_fault)) if peer == event.peer:
                return {"text": reason, "is_refused": is_fault}
            case _:
                pass
    return None


def _cell(core: Core, group: Group, blockers: set[int]) -> Json:
    """A group in the ledger: how far it is. What it will come to is asked of those that generate alone."""
    done = group.response_tokens
    share = 1.0 if group.state != "generating" else done / max(1, sum(expected(core, group))) if done else 0.0
    finished = sum(member.state == "finished" for member in group.members)
    return {
        "id": group.id,
        "state": group.state,
        "version": group.policy_version,
        "done": round(min(1.0, share), 3),
        "finished": finished,
        "size": group.size,
        "queued": sum(member.state == "queued" for member in group.members),
        "tokens": done,
        "is_blocker": group.id in blockers,
    }


def _wait(core: Core, awaited: Awaited) -> Json:
    group = awaited.group
    open_members = [member for member in group.members if member.state in ("queued", "running")]
    return {
        "group": group.id,
        "state": group.state,
        "is_due": awaited.is_due,
        "left_s": awaited.left_s,
        "members": [
            {
                "member": member.id.member,
                "where": _where(core, member),
                "tokens": member.response_tokens,
                "expected": core.state.expected_tokens(group, member),
            }
            for member in open_members[:MOST_MEMBERS]
        ],
        "more": max(0, len(open_members) - MOST_MEMBERS),
        "scorer": _scorer(core, group.id) if group.state == "scoring" else "",
    }


def _where(core: Core, member: Trajectory) -> str:
    if member.peer is None:
        return ""
    worker = core.state.registry.workers.get(member.peer)
    return worker.name if isinstance(worker, Instance) else ""


def _scorer(core: Core, group: int) -> str:
    for worker in core.state.registry.text_workers():
        if isinstance(worker, TextWorker) and group in worker.scoring:
            return worker.name
    return ""


def _nearness(group: Group) -> tuple[int, int]:
    """Occupied groups at the bottom of a column, then those that are scored, then the rest."""
    return {"occupied": 0, "scoring": 1}.get(group.state, 2), group.id


def _mean_step_s(core: Core) -> float | None:
    """Seconds from one train step to the next, as the pacing of the run has it."""
    return core.state.pace.period_s


def _fields(value: Any) -> Json:
    return {field.name: getattr(value, field.name) for field in fields(value)}
