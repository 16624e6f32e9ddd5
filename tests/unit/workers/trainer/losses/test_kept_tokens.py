"""The softmax over what an engine kept, against one over these very logits."""

import numpy as np
import pytest
import torch

from protocol.kept_sets import KeptSet
from workers.trainer.losses import KeptTokens, chosen_logprobs, logprobs

VOCABULARY = 70
SETS = [
    [3],
    list(range(VOCABULARY)),
    [0, 69],
    list(range(0, 70, 2)),
    [id for id in range(70) if id != 11],
    list(range(35)),
    [1, 2, 3],
]


def kept_tokens(sets):
    found = [KeptSet.of(np.array(ids), VOCABULARY) for ids in sets]
    codes = np.array([one.code for one in found], dtype="<i4")
    return KeptTokens.of(codes, np.frombuffer(b"".join(one.words for one in found), dtype="<i4"))


def reference(logits, targets, temperature):
    """Logprobs and entropies, row by row, of the kept logits alone."""
    chosen, entropies = [], []
    for row, target, ids in zip(logits, targets, SETS, strict=True):
        some = (row[ids] / temperature).log_softmax(-1)
        chosen.append(some[ids.index(int(target))])
        entropies.append(-(some.exp() * some).sum())
    return torch.stack(chosen), torch.stack(entropies)


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 100])
@pytest.mark.parametrize("is_entropy_trained", [True, False])
def test_values_and_gradients_are_those_of_a_softmax_over_the_kept_logits(
    monkeypatch, rows_at_a_time, is_entropy_trained
):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", rows_at_a_time * VOCABULARY)
    logits = torch.randn(len(SETS), VOCABULARY, generator=torch.Generator().manual_seed(0)) * 2
    targets = torch.tensor([ids[len(ids) // 2] for ids in SETS])
    results = []
    for is_reference in (False, True):
        leaf = logits.clone().requires_grad_()
        if is_reference:
            chosen, entropy = reference(leaf, targets, 0.7)
        else:
            chosen, entropy = chosen_logprobs(
                leaf, targets, temperature=0.7, is_entropy_trained=is_entropy_trained, kept=kept_tokens(SETS)
            )
        weights = torch.arange(1.0, len(SETS) + 1)
        ((chosen * weights).sum() + (entropy.sum() if is_entropy_trained else 0)).backward()
        results.append((chosen.detach(), entropy.detach(), leaf.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_where_nothing_was_cut_there_is_no_mask():
    assert kept_tokens([list(range(VOCABULARY))] * 3) is None


def test_an_id_that_the_logits_have_not_changes_nothing():
    kept = KeptTokens.of(np.array([2], dtype="<i4"), np.array([1, 90], dtype="<i4"))
    is_cut = kept.cut_off(slice(0, 1), VOCABULARY, torch.device("cpu"))
    assert is_cut.sum() == VOCABULARY - 1
    assert not is_cut[0, 1]
