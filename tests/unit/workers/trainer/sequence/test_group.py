"""What cannot be shared between ranks is refused in words; what is exchanged comes back."""

import pytest
import torch
import torch.distributed as dist
from transformers import Qwen3Config

from protocol.errors import ConfigError
from workers.trainer.ranks import Ranks
from workers.trainer.sequence import group as groups
from workers.trainer.sequence.group import SequenceGroup, group_of

SHAPE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.fixture
def ranks():
    return Ranks(torch.device("cpu"))


def test_a_number_that_does_not_divide_the_ranks_is_refused(ranks):
    with pytest.raises(ConfigError, match=r"sequence_ranks` is 2, which does not divide the 1 trainer ranks"):
        group_of(ranks, 2)
    assert group_of(ranks, 1) is None


def test_heads_that_it_does_not_divide_are_refused_by_name(ranks):
    group = SequenceGroup(ranks, 1)
    group.size = 2
    group.check_heads(Qwen3Config(**SHAPE))
    group.size = 4
    with pytest.raises(ConfigError, match=r"is 4, which does not divide num_key_value_heads 2"):
        group.check_heads(Qwen3Config(**SHAPE))


@pytest.mark.parametrize("size", [2, 4])
def test_exchanged_states_are_all_tokens_of_some_heads_and_come_back(size, monkeypatch):
    whole = torch.arange(4 * 8 * 3.0).view(1, 4, 8, 3)  # heads, tokens
    each = whole.chunk(size, dim=2)  # of the ranks

    def exchange(states, *, is_to_heads):
        """What all ranks do at once, one after the other."""
        sent, received = [], []
        monkeypatch.setattr(dist, "all_to_all_single", lambda into, out, group: sent.append(out))
        for one in states:
            groups._exchanged(one, None, size, is_to_heads=is_to_heads)
        for rank, one in enumerate(states):
            blocks = torch.stack([out[rank] for out in sent])
            monkeypatch.setattr(dist, "all_to_all_single", lambda into, out, group, b=blocks: into.copy_(b))
            received.append(groups._exchanged(one, None, size, is_to_heads=is_to_heads))
        return received

    heads = exchange(each, is_to_heads=True)
    assert all(torch.equal(found, part) for found, part in zip(heads, whole.chunk(size, dim=1), strict=True))
    tokens = exchange(heads, is_to_heads=False)
    assert all(torch.equal(found, part) for found, part in zip(tokens, each, strict=True))
