"""Conversations at an endpoint, told apart by their messages: each fork has the cause that a run gives it."""

from workers.evaluate.told_conversations import ToldConversations

SYSTEM = {"role": "system", "content": "play"}
ASK, MORE, OTHER = ({"role": "user", "content": text} for text in ("a", "b", "c"))
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def said(text):
    return {"role": "assistant", "content": text}


class Talk:
    """An episode that asks one thing at a time."""

    def __init__(self):
        self.conversations = ToldConversations()

    def ask(self, *messages, answer="x", tools=None, is_trained=True):
        one = self.conversations.ask(messages, tools, is_trained=is_trained)
        self.conversations.answered(one, messages, said(answer), tools)

    @property
    def forks(self):
        return self.conversations.forks


def test_a_conversation_that_only_grows_is_one():
    talk = Talk()
    talk.ask(SYSTEM, ASK)
    talk.ask(SYSTEM, ASK, said("x"), MORE)
    talk.ask(SYSTEM, ASK, {**said("x"), "refusal": None}, MORE, said("x"), OTHER)
    assert talk.forks == []


def test_each_further_one_has_its_cause():
    talk = Talk()
    talk.ask(SYSTEM, ASK)
    talk.ask(SYSTEM, ASK, said("x"), MORE)
    talk.ask(SYSTEM, ASK, said("another"), MORE)
    assert talk.forks == ["edited"]
    talk.ask(SYSTEM, ASK, {"role": "user", "content": "in short: x"})
    talk.ask(SYSTEM, OTHER)
    assert talk.forks == ["edited", "compacted", "branched"]
    talk.ask(SYSTEM, ASK, said("x"), MORE, said("x"), OTHER, tools=TOOLS)
    assert talk.forks[3:] == ["edited"], "other tools"


def test_a_second_request_at_once_goes_on_from_nothing_that_is_open():
    conversations = ToldConversations()
    first = conversations.ask([ASK], None, is_trained=True)
    second = conversations.ask([ASK], None, is_trained=True)
    assert first is not second
    assert conversations.forks == ["branched"]
    conversations.answered(second, [ASK], said("y"), None)
    assert conversations.ask([ASK, said("y"), MORE], None, is_trained=True) is second
    conversations.answered(first, [ASK], said("x"), None)
    assert conversations.ask([ASK, said("x"), MORE], None, is_trained=True) is first
    assert len(conversations.forks) == 1


def test_what_training_would_not_take_is_no_fork():
    talk = Talk()
    talk.ask(ASK)
    talk.ask(MORE, answer="y", is_trained=False)
    assert talk.forks == []
    talk.ask(MORE, said("y"), OTHER)
    assert talk.forks == ["branched"], "it goes on from nothing that is trained"
