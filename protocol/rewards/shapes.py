"""The shapes of reward functions, by the names of their parameters: what each is given, and what it may lack.

Invariant: pure; the rules that a run goes by and those that a check reads out of the source are these.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

GROUP_NAMES = ("prompts", "completions", "prompt_ids", "completion_ids", "endings", "group")
MEMBER_NAMES = ("prompt", "completion", "prompt_ids", "completion_ids", "ending", "group")
TURNS = "turns"
"""What an agent's episodes offer beside these: the texts that the policy has said, turn by turn."""
MESSAGES = "messages"
"""The conversation with its answers, as OpenAI's API has it: of episodes and of chat prompts."""
SOLUTION_NAMES = ("data_source", "solution_str", "extra_info")
SHAPES = (
    "f(completions, prompts, **columns) for a whole group, f(prompt, completion, **columns) for one "
    "response, or compute_score(data_source, solution_str, ground_truth, extra_info); see docs/rewards.md"
)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a reward function."""

    required: tuple[str, ...]
    names: tuple[str, ...]  # all, those with a default too
    takes_any: bool  # it declares **anything
    positional_only: tuple[str, ...] = ()

    @property
    def is_per_group(self) -> bool:
        """Whether it is called once for all responses to a prompt."""
        return "completions" in self.names

    @property
    def takes_solution(self) -> bool:
        """Whether it is of verl's shape."""
        return not self.is_per_group and "solution_str" in self.names


def shape_problem(signature: Signature) -> str | None:
    """Why no run can call a function with this signature; None if one can."""
    if signature.positional_only:
        return (
            f"has the positional-only parameter `{signature.positional_only[0]}`, but arguments are passed "
            f"by name. Expected: {SHAPES}."
        )
    if {"completions", "solution_str", "completion", "completion_ids"}.isdisjoint(signature.names):
        return (
            f"takes ({', '.join(signature.names)}), and none of these is a response. Expected one of: "
            f"{SHAPES}."
        )
    return None


def offered_names(signature: Signature, row: Mapping[str, object], *, is_agent: bool = False) -> set[str]:
    """Names of the arguments that it can have with this row of the data. `is_agent`: it scores episodes."""
    if is_agent:
        return offered_names(signature, row) | {TURNS, MESSAGES}
    if isinstance(row.get("prompt"), list):
        row = {**row, MESSAGES: None}
    if signature.is_per_group:
        return {*row, *GROUP_NAMES}
    if not signature.takes_solution:
        return {*row, *MEMBER_NAMES}
    nested = row.get("reward_model")
    has_truth = "answer" in row or (isinstance(nested, Mapping) and "ground_truth" in nested)
    return {*row, *MEMBER_NAMES, *SOLUTION_NAMES, *(["ground_truth"] if has_truth else [])}


def missing_problem(signature: Signature, offered: Collection[str], row: Collection[str]) -> str | None:
    """What it asks for and cannot have; None if it has all. `row`: the columns of the data."""
    missing = [name for name in signature.required if name not in offered]
    if not missing:
        return None
    given = ", ".join(GROUP_NAMES if signature.is_per_group else MEMBER_NAMES)
    return (
        f"asks for `{missing[0]}`, but the row has only the columns {', '.join(row) or '(none)'}, beside "
        f"{given}. Rename the parameter, give it a default, or map the column in `data.columns`."
    )
