"""Checks the rewards before a run starts.

Invariants: the source of a reward is read, and it is imported only if the user asks for one call, as a reward
may cost money or change something; the call is made in another process, with the time limit of a run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from controller.check.data import Level, Remark, Sample, kind_of
from controller.check.named_rewards import named_problems, unscored_remarks
from controller.check.source import Definition, look_up
from controller.config.models import Config
from controller.config.places import run_folder
from protocol.asking import ask
from protocol.errors import Unanswered
from protocol.rewards.kinds import KINDS, FunctionReward, NamedReward, entry_of
from protocol.rewards.shapes import Signature, missing_problem, offered_names, shape_problem

IMPORT_S = 120.0  # for the module, which may pull in a large library
RESPONSES = ("This response was made up by launch.py check.", "")


def reward_remarks(
    config: Config, samples: Sequence[Sample], *, calls: bool = False, is_thorough: bool = False
) -> Iterator[Remark]:
    """Remarks on the rewards of training and of held-out prompts. `calls`: call each once."""
    if config.trainer.is_supervised:
        return
    for key, entry, scored in _scored(config, samples):
        is_listed = key.startswith("reward.rewards")
        if isinstance(entry, FunctionReward):
            found = look_up(entry.function)
            if isinstance(found, str):
                if is_listed:  # else plugins.py reports it
                    yield "error", f"{key}.function", found
                continue
            signature = None if found is None else _signature(found)
            problems = list(_problems(found, signature, scored, is_agent=config.agent.is_on))
        else:
            signature = None
            problems = list(named_problems(entry, scored, is_agent=config.agent.is_on))
        for level, text in problems:
            yield level, key, text
        if any(level == "error" for level, _ in problems):
            continue
        if calls:
            yield from _called(config, key, entry, scored)
        elif is_thorough:
            fit = _fit(entry, signature, scored, is_agent=config.agent.is_on)
            yield (
                "note", key,
                f"{fit}; it was not called. `launch.py check CONFIG --call-reward` calls "
                "it once, on the first row and made-up responses.",
            )  # fmt: skip
    yield from unscored_remarks(config.reward.rewards, samples)


def _scored(config: Config, samples: Sequence[Sample]) -> Iterator[tuple[str, NamedReward, list[Sample]]]:
    """Key, reward, and the samples that it scores, for each reward."""
    held_out = [sample for sample in samples if not sample.is_trained]
    trained = [sample for sample in samples if sample.is_trained]
    if config.evaluation.reward_function:
        yield "evaluation.reward_function", entry_of(config.evaluation.reward_function), held_out
    else:
        trained += held_out
    for number, entry in enumerate(config.reward.entries):
        key = f"reward.rewards.{number}" if config.reward.rewards else "reward.function"
        chosen = [
            replace(sample, rows=[row for row in sample.rows if entry.is_for(row)])
            for sample in trained
            if not sample.rows or any(map(entry.is_for, sample.rows))
        ]
        yield key, entry, chosen if entry.when else trained


def _signature(found: Definition) -> Signature | None:
    """The parameters of a reward function; None if the source does not show them."""
    taken = found.parameters
    if taken is None:
        return None
    return Signature(taken.required, taken.names, taken.takes_any, taken.positional_only)


def _fit(entry: NamedReward, signature: Signature | None, scored: Sequence[Sample], *, is_agent: bool) -> str:
    """A sentence on whether a reward's columns fit the data, as far as rows are known."""
    if isinstance(entry, FunctionReward):
        if signature is None:
            return "its signature cannot be read without importing it"
        what, of_any = "its signature", offered_names(signature, {}, is_agent=is_agent) | {"prompt"}
        needed = [name for name in signature.required if name not in of_any]
    else:
        what, needed = entry.kind, list(KINDS[entry.kind].columns(entry))
    unseen = ", ".join(sample.section for sample in scored if not sample.rows)
    if not needed or not unseen:
        return f"{what} fits the data"
    columns = ", ".join(f"`{name}`" for name in needed)
    return f"{what} needs {columns}, not compared with {unseen}: no row of it is known before the run"


def _problems(
    found: Definition | None, signature: Signature | None, scored: Sequence[Sample], *, is_agent: bool
) -> Iterator[tuple[Level, str]]:
    if found is None:
        return
    if found.is_class:
        yield (
            "error",
            f"{found.place} is a class; expected a function or an object with `__call__`. Make one object "
            f"in that file, `score = {found.name}()`, and name `score`.",
        )
    if signature is None:
        return
    if not found.has_result:
        yield (
            "error",
            f"{found.place} has no `return` with a value; expected a number per response, or a mapping "
            "with `score`.",
        )
    if problem := shape_problem(signature):
        yield "error", f"{found.place} {problem}"
        return
    for sample in scored:
        problems = [
            missing_problem(signature, offered_names(signature, row, is_agent=is_agent), row)
            for row in sample.rows
        ]
        lacking = [problem for problem in problems if problem]
        if problems and problems[0]:
            yield "error", f"{found.place} {problems[0]}" + _of(sample)
        elif lacking:
            count = f"{len(lacking)} of the first {len(problems)} rows"
            yield "note", f"{found.place} cannot score {count}{_of(sample)}: it {lacking[0]}"


def _of(sample: Sample) -> str:
    return "" if sample.section == "data" else f" (rows of {sample.section})"


def _called(config: Config, key: str, entry: NamedReward, scored: Sequence[Sample]) -> Iterator[Remark]:
    for sample in scored:
        if not sample.rows and (entry.when or kind_of(sample.path) != "function"):
            if all(level != "error" for level, *_ in sample.remarks):  # else the error says why
                text = f"it was not called on a row of {sample.path}: none is known before the run."
                yield "note", key, text
            continue
        limit_s = entry.timeout_s or config.reward.timeout_s
        question = {
            "reward": entry.model_dump_json(),
            "place": (
                str(run_folder(config)),
                config.reward.device,
                config.reward.sandbox,
            ),
            "row": sample.rows[0] if sample.rows else None,
            "prompts": {"path": sample.path, "seed": config.run.seed, "columns": sample.columns},
            "responses": RESPONSES,
            "timeout_s": limit_s,
        }
        try:
            problem, rewards = ask("workers.reward.try_reward", question, limit_s=IMPORT_S + limit_s)
        except Unanswered as error:
            problem = f"The process in which it was called {error}."
        shown = f"called on the first row of {sample.path} and two made-up responses, one of them empty"
        if problem is not None:
            yield "error", key, f"{shown}: {problem}"
        else:
            yield "note", key, f"{shown}, it gave {', '.join(f'{reward:g}' for reward in rewards)}."
