"""`rollout.engine`: the engines that are built in, one entry each.

Invariant: what makes, checks, installs or documents engines goes by this table, so a built-in engine is an
entry here and a folder in workers/engines.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuiltInEngine:
    """What the rest of the system has to know of an engine."""

    factory: str
    """Import path of `make(settings, model_directory)`."""
    about: str
    """A few words for a person."""
    extra: str = ""
    """Of pyproject.toml and install.EXTRAS, beside `workers`; "" if it needs no more."""
    check: str = ""
    """Import path of `problems(rollout, shape)`, which yields (field, what is wrong) of a run on it before
    one starts; `shape` is the model's config.json, {} if it is not made yet."""
    has_context: bool = False
    """Whether it runs the model as transformers has it, whose context no response may pass."""
    merges_adapters: bool = False
    """Whether it holds a second copy of the weights, to merge adapters into."""
    colocated: str = ""
    """Import path of the factory of one that shares its device (`placement: colocated`); "" if it cannot."""
    adapts_mixtures: bool = True
    """Whether it takes an adapter of a mixture of experts."""
    temperatures: tuple[float, float] = (0.0, math.inf)
    """Least and greatest temperature above 0 that it samples at."""

    def temperature_problem(self, temperature: float) -> str | None:
        """What is wrong with this temperature; None if the engine samples at it."""
        least, most = self.temperatures
        if not temperature or least <= temperature <= most:
            return None
        return (
            f"is {temperature:g}, and the engine samples at 0 or from {least:g} to {most:g}. Expected a "
            "temperature of these; or set rollout.engine: torch."
        )


ENGINES: dict[str, BuiltInEngine] = {
    "torch": BuiltInEngine(
        "workers.engines.torch.engine:make_engine",
        "any Hugging Face causal model, starts in a second, no further packages",
        has_context=True,
        merges_adapters=True,
        colocated="workers.engines.torch.colocated:make_colocated",
    ),
    "vllm": BuiltInEngine(
        "workers.engines.vllm.start:make_engine",
        "as many responses at a time as its KV cache holds, in an environment of its own",
        extra="vllm",
        check="controller.check.vllm:vllm_problems",
        adapts_mixtures=False,
        temperatures=(0.01, 2.0),  # vLLM 0.32 raises what is lower to 0.01, and refuses what is higher
    ),
}
