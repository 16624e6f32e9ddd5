"""What the policy of an episode says of its door."""

import pytest

from workers.agent.policy import AgentPolicy, DoorAddress, Notes


class Line:
    """Has a turn of the door to tell of, once it is listened to."""

    def __init__(self, notes):
        self._notes, self._untold = notes, [(0, "")]

    def read_all(self):
        while self._untold:
            self._notes.count(*self._untold.pop())


def test_a_reward_is_for_the_turn_that_a_client_of_the_door_has_just_had():
    notes = Notes()
    policy = AgentPolicy(Line(notes), seed=1, notes=notes, door=DoorAddress("http://here/v1", "sk-1"))
    policy.reward(0.5)
    assert notes.rewards == {0: 0.5}


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize("hosts", ["example.org", "example.org,127.0.0.1"])
def test_variables_name_the_door_and_keep_proxies_from_it(monkeypatch, name, hosts):
    for each in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, hosts)
    policy = AgentPolicy(Line(Notes()), seed=1, door=DoorAddress("http://here/v1", "sk-1"))
    assert policy.environment == {
        "OPENAI_BASE_URL": "http://here/v1", "OPENAI_API_KEY": "sk-1", "OPENAI_MODEL": "policy",
        "no_proxy": "example.org,127.0.0.1", "NO_PROXY": "example.org,127.0.0.1",
    }  # fmt: skip
    assert (policy.base_url, policy.api_key, policy.model) == ("http://here/v1", "sk-1", "policy")


def test_without_a_door_the_key_that_opens_one_is_named():
    with pytest.raises(ValueError, match=r"set `agent\.door: true`"):
        _ = AgentPolicy(Line(Notes()), seed=1).base_url


def test_a_reward_is_for_the_answer_of_this_id_also_after_a_restart():
    notes = Notes()
    policy = AgentPolicy(Line(notes), seed=1, notes=notes, door=DoorAddress("http://here/v1", "sk-1"))
    notes.count(1, "", "b")
    notes.state = b"mine"
    again = Notes()
    assert again.restore(notes.take_state()) == b"mine"
    for each in (policy, AgentPolicy(Line(again), seed=1, notes=again)):
        each.reward(0.5, turn="b")
        assert each.notes.rewards == {1: 0.5}
        with pytest.raises(ValueError, match="No answer of this episode has the id 'c'"):
            each.reward(0.5, turn="c")


def test_the_address_with_its_key_is_of_the_same_door():
    door = DoorAddress("http://here:8/v1", "sk-1", {"temperature": 0.5})
    policy = AgentPolicy(Line(Notes()), seed=1, door=door)
    assert (policy.url_with_key, policy.request_kwargs) == ("http://here:8/e/sk-1", {"temperature": 0.5})
    assert policy.untrained.base_url == "http://here:8/untrained/v1"
    assert policy.untrained.url_with_key == "http://here:8/untrained/e/sk-1"
