"""The cost of decode steps and prefills on an instance, and the throughput that one more trajectory adds.

latency(n, tokens) = attention_b + attention_k * tokens + max(floor, other_b + other_k * n), in seconds per
decode step, for n running trajectories with `tokens` resident tokens; throughput = n / latency, in tokens per
second. Prefill of t tokens: prefill_b + prefill_k * t + prefill_square * t^2, in seconds.
Invariants: no coefficient is negative; a step takes more than 0 s.
Source: StaleFlow (arXiv 2601.12784), cost model of the rollout coordinator.
"""

import json
from typing import NamedTuple, cast

from protocol.errors import ConfigError

LARGEST = 1e9  # seconds: no engine is that slow, and sums and products stay finite


class Coefficients(NamedTuple):
    """Fitted coefficients of one engine, in seconds, seconds per trajectory, and seconds per token (squared).

    The default prefill is that of 7B parameters: if it were free, migration would move everything.
    """

    floor: float
    other_b: float
    other_k: float
    attention_b: float
    attention_k: float
    prefill_b: float = 0.0027
    prefill_k: float = 1.231e-4
    prefill_square: float = 1.63e-9


QWEN_7B_TP1 = Coefficients(0.0064, 0.0027, 1.231e-4, 0.0028, 3.35e-8)
"""Published with the StaleFlow release; prefill is ours (docs/cost_model.md). A safe default for others too:
only ratios of gains decide."""

COST_MODELS = ("online", "published")
"""Values of `staleness.cost_model` that are not coefficients: fitted during the run, or QWEN_7B_TP1."""


def step_latency(coefficients: Coefficients, running: float, tokens: float) -> float:
    """Seconds per decode step of `running` >= 1 trajectories that hold `tokens` tokens."""
    c = coefficients
    other, least = c.other_b + c.other_k * running, c.floor
    return c.attention_b + c.attention_k * tokens + (other if other > least else least)


def prefill_s(coefficients: Coefficients, tokens: float) -> float:
    """Seconds to compute the KV of `tokens` tokens: the cost of moving or resuming a trajectory with them."""
    c = coefficients
    return c.prefill_b + (c.prefill_k + c.prefill_square * tokens) * tokens


def throughput(coefficients: Coefficients, running: float, tokens: float) -> float:
    """Tokens per second of an instance; 0 when it is idle."""
    return running / step_latency(coefficients, running, tokens) if running else 0.0


def marginal_gain(coefficients: Coefficients, running: float, tokens: float, length: float) -> float:
    """Tokens per second that a trajectory of `length` tokens adds; negative if it lowers the throughput."""
    # the difference of two throughputs, inlined: every route calls it ten times
    c = coefficients
    base, slope, least, other_b, other_k = c.attention_b, c.attention_k, c.floor, c.other_b, c.other_k
    before = 0.0
    if running:
        other = other_b + other_k * running
        before = running / (base + slope * tokens + (other if other > least else least))
    other = other_b + other_k * (running + 1)
    return (running + 1) / (base + slope * (tokens + length) + (other if other > least else least)) - before


def ideal_gain(coefficients: Coefficients, length: float) -> float:
    """Tokens per second that the trajectory would add to an idle instance."""
    return throughput(coefficients, 1, length)


def scaled(coefficients: Coefficients, *, decode: float, prefill: float) -> Coefficients:
    """The same engine with its decode and prefill times multiplied by these factors."""
    c = coefficients
    return Coefficients(
        *(value * decode for value in c[:5]), *(value * prefill for value in c[5:])
    )  # fmt: skip


def dump_coefficients(coefficients: Coefficients) -> str:
    """JSON text that `load_coefficients` reads back to an equal value."""
    return json.dumps(coefficients._asdict(), indent=2) + "\n"


def load_coefficients(text: str) -> Coefficients:
    """Coefficients from a JSON object with their names as keys; prefill may be left out (7B is assumed).

    Raises: ConfigError if the text is not such an object, or no engine can have these numbers.
    """
    try:
        read: object = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"The coefficients of the cost model are no JSON: {error}. Expected an object such as "
            f"{json.dumps(QWEN_7B_TP1._asdict())}. Write one with `launch.py profile RUN -o FILE.json`."
        ) from None
    if not isinstance(read, dict):
        raise _refused(f"are a JSON {type(read).__name__}")
    found = cast("dict[str, object]", read)
    required = [name for name in Coefficients._fields if name not in Coefficients._field_defaults]
    unknown = [name for name in found if name not in Coefficients._fields]
    missing = [name for name in required if name not in found]
    if unknown or missing:
        raise _refused(f"have unknown keys {unknown} and lack {missing}")
    numbers: dict[str, float] = {}
    for name, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise _refused(f"have {name} = {value!r}")
        numbers[name] = float(value)
    coefficients = Coefficients(**numbers)
    if step_latency(coefficients, 1, 0) <= 0:
        raise _refused(f"make a step of one trajectory take 0 s: {found}")
    return coefficients


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _refused(f"give {sorted({name for name in names if names.count(name) > 1})} twice")
    return found


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"The coefficients of the cost model {what}; expected a JSON object of numbers from 0 to 1e9, "
        f"in seconds, under the keys {', '.join(Coefficients._fields)}, the prefill ones optional, and a "
        "step of more than 0 s. Write one with `launch.py profile RUN -o FILE.json`."
    )
