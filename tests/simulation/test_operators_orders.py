"""Runs whose operator gives any order at any moment, by seed: each is answered, every promise is kept.

Every invariant of the core is checked after each event; one of them is that no run is stuck.
"""

import random
from collections import Counter
from typing import Any

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.core.events import Received, StopRequested
from controller.simulation import Simulation
from protocol.messages import Close, Control
from tests.support.random_rules import random_rules
from tests.support.sampled_seeds import sampled_seeds

ACTIONS = ("pause", "unpause", "checkpoint", "evaluate", "abort", "set")
SETS = (
    "trainer.checkpoint_steps=1", "evaluation.every_steps=1", "evaluation.share=0.5", "samples.groups=8",
    "staleness.in_flight_batches=1.5",
)  # fmt: skip


class Obeyed(Simulation):
    """Counts the orders that the core was given, and the answers to them."""

    def __init__(self, config: Config, *, seed: int) -> None:
        super().__init__(config, seed=seed, check_every=1)
        self.given: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def order(self, at_s: float, operator: str, action: Any, argument: str = "") -> None:
        """Let an operator say this at that second."""
        self._on(at_s, self._deliver, Received(operator, Control(action, argument, "me", "")))

    def stop(self, at_s: float) -> None:
        """Let the run be told to end at that second."""
        self._on(at_s, self._deliver, StopRequested("ctrl-c"))

    def _deliver(self, event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Control):
            self.given[event.peer] += 1
        super()._deliver(event)

    def _send(self, peer, messages) -> None:
        self.answered[peer] += sum(isinstance(message, Close) for message in messages)
        super()._send(peer, messages)


def drawn(rng: random.Random, placement: str) -> Config:
    """A small run of this placement under rules drawn at random, which go together."""
    sets = {"x": {"path": "x.jsonl", "max_prompts": rng.choice([1, 7])}}
    evaluation = {
        "every_steps": rng.choice([1, 2, 5]), "at_start": rng.random() < 0.5, "exact": rng.random() < 0.5,
        "samples": rng.choice([1, 2]), "share": rng.choice([0.1, 0.9]), "data": sets,
    }  # fmt: skip
    rules = random_rules(rng)
    if placement == "colocated":
        rules |= {"partial_rollout": True, "keep_kv": False}
    made = Config.model_validate(
        {
            "run": {"steps": rng.choice([6, 12])},
            "placement": placement,
            "rollout": {
                "instances": rng.choice([1, 2, 3]),
                "group_size": rng.choice([2, 3]),
                "max_response_tokens": rng.choice([20, 200]),
                "max_running": rng.choice([1, 2, 8]),
            },
            "trainer": {
                "batch_groups": rng.choice([1, 2, 4]),
                "checkpoint_steps": rng.choice([0, 20]),
                "streaming": placement != "colocated" and rng.random() < 0.3,
            },
            "staleness": rules,
            "evaluation": evaluation if rng.random() < 0.5 else {},
        }
    )
    return drawn(rng, placement) if list(cross_field_problems(made)) else made


def give_orders(run: Obeyed, rng: random.Random) -> float | None:
    """Some orders at random, after which the run is not paused; when it is stopped, if it is."""
    at_s = 0.0
    for number in range(rng.randrange(1, 12)):
        at_s += rng.expovariate(1 / rng.choice([2.0, 10.0]))
        action = rng.choice(ACTIONS)
        arguments = {"abort": str(rng.randrange(30)), "set": rng.choice(SETS)}
        run.order(at_s, f"operator-{number}", action, arguments.get(action, ""))
    run.order(at_s + 5, "operator-last", "unpause")
    stop_s = rng.uniform(1, 60) if rng.random() < 0.5 else None
    if stop_s is not None:
        run.stop(stop_s)
    return stop_s


@pytest.mark.parametrize("placement", ["separate", "colocated"])
@pytest.mark.parametrize("seed", sampled_seeds(12, 300))
def test_no_order_at_any_moment_hangs_a_run_or_breaks_a_promise(seed, placement):
    rng = random.Random(f"orders/{placement}/{seed}")
    settings = drawn(rng, placement)
    run = Obeyed(settings, seed=seed)
    is_stopped = give_orders(run, rng) is not None
    outcome = run.run(patience_s=5000)
    assert outcome.is_success, outcome.reason
    steps = [line["step"] for line in outcome.lines]
    assert steps == list(range(1, len(steps) + 1))
    assert is_stopped or len(steps) == settings.run.steps
    assert not run.core.state.ledger.is_strict or outcome.summary["staleness/violations"] == 0
    trained = [group for batch in outcome.trained for group in batch]
    assert len(trained) == len(set(trained)), "a prompt was trained twice"
    assert [text for text in outcome.warnings if " was closed: " in text] == []
    assert {name: run.answered[name] for name in run.given} == dict.fromkeys(run.given, 1)
