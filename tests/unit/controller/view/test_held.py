"""What a worker has in hand is what the core says that it works on."""

import pytest

from controller.core.state.registry import Instance, TextWorker
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view import held
from controller.view.held import held_by
from tests.support.shown_run import Browser, recorded


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("held") / "run")


def cores(path):
    recording = Recording(path)
    core = recording.make_core()
    for _ in turns(recording, core):
        yield core


def test_of_an_instance_its_responses_by_group_with_their_tokens(path):
    busiest, found = 0, {}
    for core in cores(path):
        for worker in core.state.registry.instances():
            if len(worker.running) > busiest:
                busiest, found = len(worker.running), held_by(core, worker.name)
                pairs = [(one["group"], part["member"]) for one in found["groups"] for part in one["members"]]
                assert pairs == sorted(worker.running)
                for group, member in worker.running:
                    part = next(one for one in core.state.groups[group].members if one.id.member == member)
                    told = {"member": member, "tokens": part.response_tokens}
                    assert told in next(one for one in found["groups"] if one["group"] == group)["members"]
    assert busiest > 4
    assert found["role"] == "rollout"


def test_of_others_their_groups_and_of_nobody_nothing(path):
    scored, trained = set(), set()
    for core in cores(path):
        registry = core.state.registry
        for worker in registry.text_workers():
            if isinstance(worker, TextWorker) and worker.scoring:
                scored |= {
                    one["group"] for one in held_by(core, worker.name)["groups"] if one["state"] == "scoring"
                }
        if core.training.batch and (trainer := registry.trainer()) is not None:
            assert [one["group"] for one in held_by(core, trainer.name)["groups"]] == sorted(
                core.training.batch
            )
            trained |= set(core.training.batch)
        assert held_by(core, "nobody") == {"name": "nobody", "role": "", "groups": [], "more": 0}
    assert scored >= trained > set()


def test_a_worker_with_more_groups_than_a_page_can_have_is_told_with_the_rest(path, monkeypatch):
    monkeypatch.setattr(held, "MOST_GROUPS", 1)
    found = [
        held_by(core, worker.name)
        for core in cores(path)
        for worker in core.state.registry.instances()
        if isinstance(worker, Instance) and len({group for group, _ in worker.running}) == 3
    ]
    assert found
    assert all(len(one["groups"]) == 1 and one["more"] == 2 for one in found)


def test_the_page_now_tells_it_of_whom_it_was_asked_alone(path):
    browser = Browser(path)
    assert browser.json("/api/runs/0/now?event=60")[1]["held"] is None
    assert browser.json("/api/runs/0/now?event=60&who=rollout-0")[1]["held"]["role"] == "rollout"
