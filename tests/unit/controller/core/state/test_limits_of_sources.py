"""Responses to prompts of one source may be shorter than those of another, wherever they go on."""

import re

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from protocol import messages
from protocol.messages import Delta, Generated, Message
from tests.support.answered_run import AnsweredRun

SOURCES = [{"path": "short.jsonl", "max_response_tokens": 4}, {"path": "long.jsonl"}]


class CuttingRun(AnsweredRun):
    """Each response grows to its limit; each worker hands back one of the short source, after 3 tokens."""

    def __init__(self, path, **options):
        super().__init__(path, data={"sources": SOURCES}, **options)
        self.budgets: list[tuple[int, int, int]] = []  # source, tokens before, budget
        self.trained: dict[int, set[int]] = {0: set(), 1: set()}
        self.handed_back: set[str] = set()

    def answer_message(self, peer: str, message: Message) -> None:
        if isinstance(message, messages.Route):
            self.answer_route(peer, message)
            return
        if isinstance(message, messages.Train):
            for item in message.items:
                self.trained[self.core.state.groups[item.group].source].add(item.response_tokens)
        super().answer_message(peer, message)

    def answer_route(self, peer: str, route: messages.Route) -> None:
        version = self.core.state.registry.workers[peer].next_version  # type: ignore[attr-defined]
        before = sum(segment.count for segment in route.segments)
        source = self.core.state.groups[route.group].source
        self.budgets.append((source, before, route.max_new_tokens))
        is_kept = before > 0 or source == 1 or peer in self.handed_back
        self.handed_back |= set() if is_kept else {peer}
        count, ending = (route.max_new_tokens, "length") if is_kept else (3, "interrupt")
        delta = Delta(route.group, route.member, route.attempt, 0, count, version, ending)
        self.hear(peer, Generated.of((delta,)))


def test_each_source_has_its_own_limit_through_interruptions(tmp_path):
    run = CuttingRun(tmp_path / "run.db", steps=6)
    run.to_the_end()
    assert set(run.budgets) == {(0, 0, 4), (0, 3, 1), (1, 0, 10)}
    assert run.trained == {0: {4}, 1: {10}}
    assert run.core.state.steps == 6


class Overdoing(CuttingRun):
    def answer_route(self, peer: str, route: messages.Route) -> None:
        version = self.core.state.registry.workers[peer].next_version  # type: ignore[attr-defined]
        delta = Delta(route.group, route.member, route.attempt, 0, 9, version, "length")
        self.hear(peer, Generated.of((delta,)))


def test_a_worker_that_tells_of_more_is_closed(tmp_path):
    run = Overdoing(tmp_path / "run.db")
    run.to_the_end(max_events=400)
    assert 9 not in run.trained[0]
    assert not any(peer.startswith("rollout") for peer in run.core.state.registry.workers)


def test_a_limit_above_the_engines_is_refused():
    config = Config.model_validate({"data": {"sources": [{"path": "a", "max_response_tokens": 900}]}})
    words = [text for _, text in cross_field_problems(config)]
    assert any(re.search(r"is 900, above rollout\.max_response_tokens 512", text) for text in words)


@pytest.mark.parametrize("name", ["rollout", "evaluation"])
def test_a_least_length_that_no_response_may_have_is_refused(name):
    config = Config.model_validate({name: {"sampling": {"min_tokens": 513}}})
    assert any(
        f"{name}.sampling.min_tokens" in fields and "no response could stop" in text
        for fields, text in cross_field_problems(config)
    )
