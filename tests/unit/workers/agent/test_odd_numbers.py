"""Numbers that an agent's code hands to its policy, beyond what its worker takes."""

import pytest

from workers.agent.policy import MOST, AgentPolicy


class Line:
    """Answers everything, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    async def ask(self, question):
        self.asked.append(question)
        return {"sampled": [1], "ending": "stop"}

    def read_all(self): ...


@pytest.mark.parametrize("token", [-1, MOST + 1])
async def test_a_token_id_that_no_model_has_is_refused_where_it_was_written(token):
    line = Line()
    with pytest.raises(ValueError, match=rf"policy\.generate got the token id {token}; expected 0 or more"):
        await AgentPolicy(line, seed=0).generate([5, token])
    assert not line.asked


async def test_more_tokens_than_anybody_counts_are_as_many_as_are_allowed():
    line = Line()
    await AgentPolicy(line, seed=0).generate([5], max_tokens=10**12)
    assert line.asked == [{"tokens": [5], "max_tokens": MOST}]
