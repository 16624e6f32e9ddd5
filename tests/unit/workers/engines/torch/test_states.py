"""States of rows: a pass changes those of its own rows, and rows are copied, exchanged and emptied whole."""

import torch

from workers.engines.torch.states import RowStates

PLACE = (1, "conv", 0)


def filled(rows=4):
    """Row r holds r everywhere, in the second of two layers."""
    states = RowStates(["full_attention", "conv"])
    values = torch.arange(float(rows)).view(rows, 1, 1).expand(rows, 2, 3).clone()
    states.install({PLACE: values}, torch.arange(rows), torch.arange(rows), rows=rows)
    return states


def rows_of(states):
    (stored,) = states.tensors()
    return stored[:, 0, 0].tolist()


def step(states, value):
    """What a layer's pass over one token does."""
    layer = states.layers[1]
    count = len(layer.conv_states[0])
    layer.update_conv_state(torch.full((count, 2, 3), value), conv_kernel_size=3)


def test_only_models_with_such_layers_need_states():
    assert filled().is_needed
    assert not RowStates(["full_attention", "sliding_attention"]).is_needed


def test_a_pass_over_the_first_rows_changes_these_alone():
    states = filled()
    states.begin(None, 2)
    step(states, 9.0)
    states.end(4)
    assert rows_of(states) == [9, 9, 2, 3]


def test_a_pass_over_chosen_rows_changes_these_alone():
    states = filled()
    states.begin(torch.tensor([3, 1]), 2)
    assert states.layers[1].conv_states[0][:, 0, 0].tolist() == [3, 1]
    step(states, 9.0)
    states.end(4)
    assert rows_of(states) == [0, 9, 2, 9]


def test_what_a_first_pass_makes_is_kept_where_no_row_had_a_state():
    states = RowStates(["full_attention", "conv"])
    states.begin(None, 2)
    states.layers[1].update_conv_state(torch.full((2, 2, 3), 5.0), conv_kernel_size=3)
    states.end(4)
    assert rows_of(states) == [5, 5, 0, 0]


def test_rows_are_moved_exchanged_emptied_and_kept_when_there_is_room_for_more():
    states = filled()
    states.move(3, 0)
    states.swap(1, 2)
    states.empty(3)
    states.reserve(6)
    assert rows_of(states) == [3, 2, 1, 0, 0, 0]
    states.clear()
    assert list(states.tensors()) == []
