"""Which request is new and which is a retry, and which key speaks for which episode."""

from types import SimpleNamespace

import numpy as np
import pytest

from workers.agent.door.desk import DoorDesk, DoorQuestion
from workers.agent.door.keys import PREFIX
from workers.agent.door.refusal import DoorRefusal

REQUEST = SimpleNamespace(has_logprobs=True, is_untrained=False, response=None)
TURN = SimpleNamespace(group=7, episode=1, trial=2, member=4, number=3, ending="length")


class Desk:
    """A desk, and the questions that were to be sampled."""

    def __init__(self):
        self.asked = []
        self.desk = DoorDesk(lambda number, question: self.asked.append(question))
        self.key = self.desk.open(5)

    def take(self, body=b"{}", *, request=REQUEST, is_retry=False, idempotency_key="") -> DoorQuestion:
        return self.desk.take(5, body, request, is_retry=is_retry, idempotency_key=idempotency_key)


async def test_equal_requests_are_as_many_samples_unless_they_are_marked_as_retries():
    one = Desk()
    first, second = one.take(), one.take()
    assert one.asked == [first, second]
    third = one.take(b"[]", is_retry=True)  # its first try never came
    assert one.asked == [first, second, third]
    assert one.take(b"[]", is_retry=True) is third


async def test_what_is_not_to_be_trained_is_no_retry_of_what_is():
    one = Desk()
    trained, untrained = one.take(), SimpleNamespace(has_logprobs=False, is_untrained=True)
    other = one.take(request=untrained, is_retry=True)
    assert one.asked == [trained, other]
    assert one.take(request=untrained, is_retry=True) is other


async def test_a_retry_gets_what_nobody_has_got_and_then_what_fewest_wait_for():
    one = Desk()
    delivered, awaited, lost = one.take(), one.take(), one.take()
    delivered.is_delivered = True
    awaited.listeners = 1
    assert one.take(is_retry=True) is lost
    lost.listeners = 2
    assert one.take(is_retry=True) is awaited
    awaited.is_delivered = True
    assert one.take(is_retry=True) is lost


async def test_an_idempotency_key_is_of_one_body():
    one = Desk()
    first = one.take(b"{}", idempotency_key="a")
    assert one.take(b"{}", idempotency_key="a") is first
    assert one.take(b"{}", idempotency_key="b") is not first
    with pytest.raises(DoorRefusal, match="came before with another body"):
        one.take(b"[]", idempotency_key="a")
    assert len(one.asked) == 2


async def test_a_question_that_is_refused_is_not_known_afterwards():
    def refuse(number, question):
        raise DoorRefusal(400, "no")

    one = Desk()
    asks, one.desk._ask = one.desk._ask, refuse
    with pytest.raises(DoorRefusal):
        one.take(idempotency_key="a")
    one.desk._ask = asks
    assert one.take(is_retry=True, idempotency_key="a") in one.asked


async def test_an_answer_says_how_it_ended_and_leaves_out_tokens_without_text():
    question = Desk().take()
    tokens, logprobs = np.array([4, 0, 6], "<i4"), np.array([-0.5, -1.0, -0.25], "<f4")
    texts = {4: "a", 0: "", 6: "b"}
    frames = (tokens.tobytes(), logprobs.tobytes())
    question.given = 9
    question.take(TURN, {"role": "assistant"}, frames, lambda ids: texts[ids[0]])
    answer = question.answer.result()
    assert (answer.id, answer.is_cut) == ("chatcmpl-7-1-2-4-3", True)
    assert (answer.given, answer.sampled) == (9, 3)
    assert answer.logprobs == [("a", -0.5), ("b", -0.25)]
    of_responses = Desk().take(request=SimpleNamespace(response={}, is_untrained=False))
    assert of_responses.name_of(TURN) == "resp_7-1-2-4-3"


async def test_an_episode_that_ends_answers_all_that_wait_and_its_key_is_known_as_over():
    one = Desk()
    answered, *waiting = [one.take(b"1"), one.take(), one.take(b"[]")]
    answered.settle("an answer")
    assert one.desk.keys.number_of(f"bearer {one.key}") == 5
    one.desk.close(5)
    assert [question.answer.done() and question.answer.result() for question in waiting] == [None, None]
    assert answered.answer.result() == "an answer"
    with pytest.raises(DoorRefusal) as over:
        one.desk.keys.number_of(f"Bearer {one.key}")
    assert over.value.status == 410
    one.desk.close(5)  # twice, as when it is lost while it ends


@pytest.mark.parametrize("authorization", ["", "Basic {}", "{}", "Bearer {}0", f"Bearer {PREFIX}", "Bearer"])
async def test_what_is_no_key_of_an_episode_is_refused_as_such_while_it_runs(authorization):
    one = Desk()
    with pytest.raises(DoorRefusal) as refused:
        one.desk.keys.number_of(authorization.format(one.key))
    assert refused.value.status == 401
