"""Checks prompts against the model's tokenizer before a run starts.

Invariant: no tokenizer is loaded in this process; a module of the workers loads it, in another process.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from controller.check.data import Remark, Sample
from controller.config.models import Config
from protocol.asking import ask
from protocol.errors import Unanswered
from protocol.files import exists, is_file
from protocol.model_files import FURTHER_TEMPLATES

ENCODE_S = 120.0  # to import transformers, load a tokenizer and encode a few hundred prompts
TEMPLATES = ("chat_template.jinja", "chat_template.json", FURTHER_TEMPLATES)


def prompt_remarks(
    config: Config, samples: Sequence[Sample], directory: Path, *, is_thorough: bool = False
) -> Iterator[Remark]:
    """Remarks on each source's first prompts. `directory`: of the model; `is_thorough`: encode the prompts.

    None for an agent, whose function gets rows with or without a prompt.
    """
    if config.agent.is_on:
        return
    if not is_file(directory / "config.json"):
        if is_thorough and config.model.factory:
            text = (
                "the model is made when the run starts, so how long prompts are in tokens is not known yet."
            )
            yield "note", "rollout.max_prompt_tokens", text
        return
    has_template = _has_template(directory)
    for sample in samples:
        prompts = [row["prompt"] for row in sample.rows if "prompt_ids" not in row]
        messages = sum(isinstance(prompt, list) for prompt in prompts)
        if messages and not has_template:
            yield (
                "error", f"{sample.section}.path",
                f"{sample.path} has prompts that are chat messages, and the tokenizer in {directory} has "
                "no chat template to make text of them. Expected a chat model as model.path, or prompts "
                "that are text.",
            )  # fmt: skip
            continue
        if prompts and has_template and messages < len(prompts):
            yield (
                "note", f"{sample.section}.path",
                f"{sample.path} has prompts that are text, and they are tokenized as they are: the chat "
                "template of the model is applied to messages only. For a chat model write each as "
                '{"prompt": [{"role": "user", "content": "..."}]}.',
            )  # fmt: skip
        if is_thorough and sample.rows:
            yield from _encoded(config, sample, directory)


def _has_template(directory: Path) -> bool:
    if any(exists(directory / name) for name in TEMPLATES):
        return True
    try:
        about: Any = json.loads((directory / "tokenizer_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and bool(about.get("chat_template"))


def _encoded(config: Config, sample: Sample, directory: Path) -> Iterator[Remark]:
    question = {
        "model": str(directory),
        "rows": sample.rows,
        "max_prompt_tokens": config.rollout.max_prompt_tokens,
        "max_response_tokens": config.rollout.max_response_tokens,
        "is_supervised": config.trainer.is_supervised and sample.is_trained,
    }
    try:
        problem, refused, endless, unheard = ask("workers.reward.try_prompts", question, limit_s=ENCODE_S)
    except Unanswered as error:
        text = f"the process that was to load the tokenizer in {directory} {error}."
        yield "error", "model.path", text
        return
    if problem is not None:
        yield "error", "model.path", problem
    elif refused:
        reason = refused[0]
        known = ("rollout.max_prompt_tokens", "rollout.max_response_tokens", "model.path")
        key = next((name for name in known if name in reason), f"{sample.section}.path")
        many, some = f"the first {len(sample.rows)} prompts of {sample.path} would be refused", len(refused)
        if some < len(sample.rows):
            yield "note", key, f"{some} of {many}, and left out; the first because: {reason}"
        else:
            yield "error", key, f"all of {many}, the first because: {reason}"
    of_rows = f"of the first {len(sample.rows)} rows of {sample.path}, "
    if unheard is not None and not config.agent.is_on:  # an agent names its tools itself
        yield "note", "model.path", f"{of_rows}{unheard}"
    if endless is not None:
        yield "note", "model.path", f"{of_rows if question['is_supervised'] else ''}{endless}"
