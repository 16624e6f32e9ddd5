"""What the page Now takes out of metrics.jsonl."""

from controller.view.pictures import figures_of

LINES = [
    {"step": 1, "compute/mfu": 0.1, "loss": 3.0},
    {"step": 2, "compute/mfu": 0.2, "phase/training": 1, "memory/trainer_mb": "?", "loss": 2.0},
]


def test_the_figures_are_of_the_newest_step_that_the_core_has_made():
    assert figures_of(LINES, 1) == {"compute/mfu": 0.1}
    assert figures_of(LINES, 9) == {"compute/mfu": 0.2, "phase/training": 1}
    assert figures_of(LINES, 0) == figures_of([], 3) == {}
