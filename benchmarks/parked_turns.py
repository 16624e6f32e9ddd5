"""What turn after turn of one conversation costs the torch engine, with and without its parked row.

    python -m benchmarks.parked_turns                      10 turns of 32 sampled and 32 given tokens
    python -m benchmarks.parked_turns --turns 20 --hidden 256

A model of random weights; no new ones come in between. `parked` goes on in the row that the turn before has
left; `whole` prefills its whole context each time, as an instance does that is not its home. Times are CPU
seconds of the process with one thread, the least of `--rounds` conversations.
"""

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from transformers.models.auto import AutoModelForCausalLM
from transformers.models.qwen3 import Qwen3Config

from protocol.settings import RolloutSettings
from workers.engines.interface import Generation
from workers.engines.torch import TorchEngine

VOCABULARY, PROMPT = 256, 32


class Turn(NamedTuple):
    """What one turn took."""

    prefilled: int
    reused: int
    cpu_s: float


def make_engine(*, hidden: int, turns: int, tokens: int, parks_turns: bool) -> TorchEngine:
    """An engine with room for the whole conversation."""
    torch.manual_seed(0)
    longest = PROMPT + 2 * tokens * turns
    config = Qwen3Config(
        hidden_size=hidden, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=2 * hidden, vocab_size=VOCABULARY, max_position_embeddings=longest,
    )  # fmt: skip
    rollout = RolloutSettings(max_running=4, max_prompt_tokens=longest - tokens, max_response_tokens=tokens)
    model = AutoModelForCausalLM.from_config(config).eval()
    return TorchEngine(model, rollout, stop_tokens=[], parks_turns=parks_turns)


def conversation(engine: TorchEngine, number: int, *, turns: int, tokens: int) -> Iterator[Turn]:
    """Its turns, one by one."""
    text = [number % VOCABULARY] * PROMPT
    for turn in range(turns):
        before, began = engine.load(), time.process_time()
        engine.add(Generation((number, 0, turn), text, [], tokens, turn))
        while engine.is_busy():
            text = text + [item.token for item in engine.step()]
        cpu_s, after = time.process_time() - began, engine.load()
        yield Turn(
            after.prefill_tokens - before.prefill_tokens, after.reused_tokens - before.reused_tokens, cpu_s
        )
        text = text + [(turn + 1) % VOCABULARY] * tokens


def best_of(rounds: int, *, hidden: int, turns: int, tokens: int, parks_turns: bool) -> list[Turn]:
    """Each turn as it was in its quickest round."""
    engine = make_engine(hidden=hidden, turns=turns, tokens=tokens, parks_turns=parks_turns)
    found = [list(conversation(engine, number, turns=turns, tokens=tokens)) for number in range(rounds)]
    return [min(turn, key=lambda one: one.cpu_s) for turn in zip(*found, strict=True)]


def main() -> None:
    """Print a row for each turn, and how much the last takes of the second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"hidden": chosen.hidden, "turns": chosen.turns, "tokens": chosen.tokens}
    parked, whole = (best_of(chosen.rounds, **sizes, parks_turns=parks) for parks in (True, False))
    print("turn   prefilled, reused, ms: parked      whole")
    for number, (one, other) in enumerate(zip(parked, whole, strict=True), start=1):
        print(
            f"{number:4}{one.prefilled:12}{one.reused:8}{1e3 * one.cpu_s:9.1f}"
            f"{other.prefilled:12}{other.reused:8}{1e3 * other.cpu_s:9.1f}"
        )
    for name, turns in (("parked", parked), ("whole", whole)):
        print(f"{name}: turn {chosen.turns} takes {turns[-1].cpu_s / turns[1].cpu_s:.2f} of turn 2.")


if __name__ == "__main__":
    main()
