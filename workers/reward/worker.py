"""The reward worker: turns prompts into token ids, and responses into rewards.

Invariants: every Encode and every Score gets exactly one answer; the user's function runs in processes of its
own; tokenizing runs in a thread, one call at a time; torch is not needed.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, assert_never, cast

import numpy as np
from pydantic import ValidationError

from protocol.errors import ConfigError
from protocol.messages import (
    Encode,
    ExamplesEncoded,
    GroupScored,
    Message,
    PromptsEncoded,
    Ready,
    Score,
    ScoreFailed,
    ScoreItem,
    ToReward,
)
from protocol.model_files import vocabulary_of
from protocol.plain_text import begin_and_end, begin_of
from protocol.rewards.kinds import NamedReward, entry_of
from protocol.settings import WorkerSettings
from workers.link.link import Link
from workers.models.tokenizer import load_tokenizer, stop_tokens_of
from workers.reward.begun_answers import opening
from workers.reward.chat_rows import rendered, template_arguments, why_unheard
from workers.reward.child import ScoringFailed
from workers.reward.kinds.interface import Place
from workers.reward.mixture import RewardMixture

QUICK_CHARS = 1 << 18  # a row of so many characters is tokenized in a fraction of a second
NO_END = (
    "neither the tokenizer nor the model's config.json or generation_config.json names a token that ends a "
    "response, so that each goes on to rollout.max_response_tokens, or to a string of rollout.sampling.stop. "
    "Name that token as `eos_token_id` in generation_config.json."
)
LONGEST_TOKEN_CHARS = 128  # the longest tokens of today's vocabularies, which are runs of blanks
logger = logging.getLogger(__name__)


class RewardWorker:
    """A tokenizer and a pool of reward processes behind a link."""

    _tokenizer: Any
    _link: Link

    def __init__(self, settings: WorkerSettings, model_directory: str) -> None:
        self._settings = settings
        self._model_directory = model_directory
        self._tokenizing = asyncio.Lock()
        place = Place(settings.run_dir, settings.reward.device, settings.reward.sandbox)
        try:
            self._mixture = self._evaluated = self._mix(settings.reward.entries, place)
            other = settings.evaluation_function
            if other and other != settings.reward.function:
                self._evaluated = self._mix((entry_of(other),), place, field="evaluation.reward_function")
        except ValidationError as error:  # of a name that needs options
            raise ConfigError(f"The reward lacks options: {error}") from None
        self._is_draining = False
        self._starting: list[asyncio.Task[None]] = []  # cancelled by a drain
        self._wake: Callable[[], None] = lambda: None  # wakes the loop that serves, once there is one
        self._vocabulary = vocabulary_of(Path(model_directory))
        self._stops: frozenset[int] = frozenset()  # of the engines, for supervised training
        self._has_seen_rows = self._has_seen_responses = False

    def _mix(
        self, rewards: Sequence[NamedReward], place: Place, field: str = "reward.function"
    ) -> RewardMixture:
        paths = self._settings.import_paths
        return RewardMixture(rewards, self._settings.reward, place=place, import_paths=paths, field=field)

    def drain(self) -> None:
        """Return from `run` at once: another worker gets the unfinished scores."""
        self._is_draining = True
        for task in self._starting:
            task.cancel()
        self._wake()

    async def run(self, link: Link) -> None:
        """Serve until drained.

        Raises: LinkClosed, ConfigError if the tokenizer or the function cannot be loaded.
        """
        self._link, self._wake = link, link.wake
        is_supervised = self._settings.trainer.is_supervised
        entries = self._settings.reward.entries
        has_rewards = bool(entries)
        if not has_rewards and not is_supervised and not self._settings.agent.is_on:
            raise ConfigError("`reward.function` is empty; expected `module:function` or `file.py:function`.")
        async with contextlib.AsyncExitStack() as stack:
            mixtures = {self._mixture, self._evaluated} if has_rewards and not is_supervised else ()
            for mixture in mixtures:
                await stack.enter_async_context(mixture)
            async with asyncio.TaskGroup() as tasks:
                for mixture in mixtures:
                    self._starting.append(tasks.create_task(mixture.start(), name="rewards"))
                self._tokenizer = await asyncio.to_thread(load_tokenizer, self._model_directory)
                if is_supervised:
                    find = stop_tokens_of, self._model_directory, self._tokenizer
                    self._stops = await asyncio.to_thread(*find)
            if self._is_draining:
                return
            capacity = self._mixture.capacity(self._settings.rollout.group_size) if mixtures else 0
            link.send(Ready(0, capacity, 0))
            reward = self._settings.reward
            text = "Ready: %d processes for %s, %d groups at once."
            names = ", ".join(entry.label for entry in entries)
            logger.info(text, reward.processes, names or "no reward", capacity)
            await self._serve(link)

    async def _serve(self, link: Link) -> None:
        async with asyncio.TaskGroup() as tasks:
            pending: set[asyncio.Task[None]] = set()
            while not self._is_draining:
                while (item := link.receive_nowait()) is not None:
                    task = tasks.create_task(self._handle(*item), name=type(item[0]).__name__)
                    pending.add(task)
                    task.add_done_callback(pending.discard)
                await link.arrived.wait()
            for task in pending:
                task.cancel()

    async def _handle(self, message: Message, frames: tuple[bytes, ...]) -> None:
        order = cast("ToReward", message)  # the link lets nothing else pass
        match order:
            case Encode():
                async with self._tokenizing:
                    answer = await asyncio.to_thread(self._encode, order.groups, frames)
                self._link.send(*answer)
            case Score():
                await self._score(order, frames)
            case _:
                assert_never(order)

    def _encode(self, groups: tuple[int, ...], frames: tuple[bytes, ...]) -> tuple[Any, ...]:
        encoded: list[tuple[int, ...]] = []
        refused: list[tuple[int, str]] = []
        buffers: list[bytes] = []
        responses: list[list[int]] = []
        rollout, is_supervised = self._settings.rollout, self._settings.trainer.is_supervised
        for group, frame in zip(groups, frames, strict=True):
            try:
                longest = rollout.max_prompt_tokens
                ids = encode_prompt(self._tokenizer, frame, limit=longest, is_supervised=is_supervised)
                counts = [len(ids)]
                if is_supervised:
                    most, stops = rollout.max_response_tokens, self._stops
                    response = encode_response(self._tokenizer, frame, ids, limit=most, stops=stops)
                    ids = [*ids, *response]
                    counts.append(len(response))
                check_vocabulary(ids, self._vocabulary)
            except Exception as error:  # tokenizers and chat templates raise whatever they like
                reason, shown = begin_and_end(str(error)), begin_of(frame.decode(errors="replace"))
                refused.append((group, f"{reason} Row: {shown}"))
            else:
                encoded.append((group, *counts))
                buffers.append(np.asarray(ids, dtype="<i4").tobytes())
                responses += [ids[-counts[-1] :]] if is_supervised else []
        if not self._has_seen_rows:
            self._has_seen_rows = True
            if problem := why_unheard(self._tokenizer, [json.loads(frame) for frame in frames]):
                logger.warning("Of the first %d rows, %s", len(frames), problem)
        if responses and not self._has_seen_responses:
            self._has_seen_responses = True
            if problem := why_endless(self._tokenizer, responses, self._stops):
                logger.warning("Of the first %d rows, %s", len(responses), problem)
        kind: Any = ExamplesEncoded if is_supervised else PromptsEncoded
        return kind(tuple(encoded), tuple(refused)), *buffers

    async def _score(self, score: Score, frames: tuple[bytes, ...]) -> None:
        row, prompt, *rest_of_frames = frames
        responses, talks = rest_of_frames[: len(score.items)], rest_of_frames[len(score.items) :]
        prompt_ids, *completion_ids = (np.frombuffer(f, dtype="<i4").tolist() for f in (prompt, *responses))
        try:
            runs = [sampled_runs(*pair) for pair in zip(score.items, completion_ids, strict=True)]
            completion_ids = [*map(last_said, completion_ids, runs)]
            said = [run for found in runs for run in found or ()]
            text, *texts = await self._decode([prompt_ids, *completion_ids, *said])
            completions, rest = texts[: len(runs)], iter(texts[len(runs) :])
            endings = [item.ending for item in score.items]
            turns = [[next(rest) for _ in found] for found in runs if found is not None]
            messages = read_talks(score.items, talks)
            lists = (completions, completion_ids, endings, *([turns, messages] if turns else []))
            request = (score.group, row, text, prompt_ids, *lists)
            mixture = self._evaluated if score.is_evaluation else self._mixture
            scored = await mixture.score(request, members=len(endings))
        except ScoringFailed as error:
            reason, shown = begin_and_end(str(error)), begin_of(row.decode(errors="replace"))
            self._link.send(ScoreFailed(score.group, score.attempt, reason, shown))
        else:
            self._link.send(GroupScored(score.group, score.attempt, *scored))

    async def _decode(self, sequences: list[list[int]]) -> list[str]:
        """The texts of these token ids. Raises: ScoringFailed."""

        def decode() -> list[str]:
            return [self._tokenizer.decode(ids, skip_special_tokens=True) for ids in sequences]

        try:
            async with self._tokenizing:
                return await asyncio.to_thread(decode)
        except Exception as error:  # tokenizers raise whatever they like
            raise ScoringFailed(
                f"The tokenizer cannot turn these tokens into text: {type(error).__name__}: {error}. "
                "Check that `model.path` is the model that the responses were sampled from."
            ) from None


def sampled_runs(item: ScoreItem, tokens: list[int]) -> list[list[int]] | None:
    """The sampled tokens of each turn of an episode; None for a response that is no episode."""
    if not item.segments or not item.segments[0].is_given:
        return None
    runs: list[list[int]] = []
    place = 0
    for segment in item.segments:
        if segment.is_given:
            runs.append([])
        else:
            runs[-1] += tokens[place : place + segment.count]
        place += segment.count
    return runs


def last_said(tokens: list[int], runs: list[list[int]] | None) -> list[int]:
    """The tokens that count as the response: for an episode the policy's last answer, from `sampled_runs`."""
    return tokens if runs is None else [*runs[-1]]


def read_talks(items: Sequence[ScoreItem], frames: Sequence[bytes]) -> list[list[Any]]:
    """The messages of each item, none if they were not kept. Raises: ScoringFailed."""
    rest = iter(frames)
    try:
        return [[said for _ in item.talk for said in json.loads(next(rest))] for item in items]
    except (ValueError, TypeError) as error:  # JSON's own, of bytes that are no text, of what is no list
        raise ScoringFailed(
            f"The messages of an episode cannot be read: {error}. Its agent worker has sent them so."
        ) from None


def encode_prompt(tokenizer: Any, row_json: bytes, *, limit: int, is_supervised: bool = False) -> list[int]:
    """The token ids of a row: its `prompt_ids`, or its `prompt`, a string or a list of chat messages.

    Messages end with the beginning of an answer; or within the last message, if that is the assistant's and
    no response follows it (`is_supervised`). Raises: ValueError in words if there is no prompt, or one of
    more than `limit` tokens; whatever the chat template raises. A tokenizer takes seconds and 400 MB per
    million characters, so a text that cannot fit is refused before.
    """
    row = json.loads(row_json)
    ids, prompt = row.get("prompt_ids"), row.get("prompt")
    if ids is None and len(row_json) > QUICK_CHARS:
        _refuse_too_long("prompt", prompt, limit)
    if ids is not None:
        if not isinstance(ids, list) or not all(type(n) is int and 0 <= n < 2**31 for n in ids):
            raise ValueError(
                f"`prompt_ids` is {ids!r:.80}; expected a list of token ids (integers from 0). A "
                "column that is something else needs another name: `data.columns: {prompt_name: prompt_ids}`."
            )
    elif isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"] if prompt else []
    elif isinstance(prompt, list):
        _, wanted = template_arguments(row)
        how = {"add_generation_prompt": True} if is_supervised else opening(prompt, wanted)
        ids = prompt and rendered(tokenizer, row, prompt, **how)
    else:
        raise ValueError(
            f"`prompt` is {type(prompt).__name__}; expected a string or a list of chat messages. Map the "
            "column that holds it in `data.columns`."
        )
    if not ids:
        raise ValueError("The prompt is empty; expected at least one token.")
    if len(ids) > limit:
        raise ValueError(
            f"The prompt has {len(ids)} tokens; `rollout.max_prompt_tokens` allows {limit}. "
            "Raise it or drop the row."
        )
    return ids


def _refuse_too_long(what: str, said: object, limit: int) -> None:
    """Refuse a text that no tokenizer fits into `limit` tokens, without tokenizing it. Raises: ValueError."""
    chars = len(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))
    if chars > max(QUICK_CHARS, LONGEST_TOKEN_CHARS * limit):
        raise ValueError(
            f"The {what} has {chars:,} characters, which are too many for {limit} tokens, whatever the "
            f"tokenizer; expected no more tokens than `rollout.max_{what}_tokens`. Raise it or drop the row."
        )


def check_vocabulary(ids: Sequence[int], size: int | None) -> None:
    """Refuse token ids beyond the model's vocabulary, for which the controller would blame this worker.

    Raises: ValueError with a message for the user.
    """
    if size is not None and max(ids) >= size:
        raise ValueError(
            f"The row has the token id {max(ids)}, and the model at `model.path` has {size} tokens, numbered "
            "from 0 (vocab_size in its config.json). Expected a smaller id. If tokens were added to its "
            "tokenizer, resize the model to them (resize_token_embeddings) and save both again."
        )


def encode_response(
    tokenizer: Any, row_json: bytes, prompt_ids: list[int], *, limit: int, stops: Collection[int] = ()
) -> list[int]:
    """The token ids of the row's `response` after its prompt, up to the token that ends a response.

    A text after a text prompt is tokenized separately, and ended. An answer to chat messages, a text or a
    whole message, is what the chat template adds to the prompt for it, without what the template writes after
    the end of the turn, because an engine stops there: at the tokenizer's end token or, if the template
    writes none, at one of `stops`. Raises: ValueError with a message for the user; whatever the chat template
    raises.
    """
    row = json.loads(row_json)
    eos, answer = tokenizer.eos_token_id, row["response"]
    if len(row_json) > QUICK_CHARS:
        _refuse_too_long("response", answer, limit)
    if isinstance(answer, str):
        answer = {"role": "assistant", "content": answer}
    if isinstance(row["prompt"], list) and row.get("prompt_ids") is None:
        whole = rendered(tokenizer, row, [*row["prompt"], answer])
        if whole[: len(prompt_ids)] != prompt_ids:
            raise ValueError(
                "The chat template renders the prompt otherwise when an answer follows it, so that it cannot "
                "be told what the answer is. Give `prompt` and `response` as text."
            )
        ids = whole[len(prompt_ids) :]
        ends = [place for place, id in enumerate(ids, 1) if id == eos]
        ends = ends or [place for place, id in enumerate(ids, 1) if id in stops]
        ids = ids[: ends[-1]] if ends else ids
    else:
        ids = tokenizer(answer["content"], add_special_tokens=False)["input_ids"]
        ids += [eos] if eos is not None and ids[-1:] != [eos] else []
    if not 0 < len(ids) <= limit:
        raise ValueError(
            f"The response has {len(ids)} tokens; expected 1 to `rollout.max_response_tokens`, {limit}. "
            "Raise it or drop the row."
        )
    return ids


def why_endless(tokenizer: Any, responses: Sequence[Sequence[int]], stops: Collection[int]) -> str | None:
    """Why the model would not end its responses, or not learn it; None if one ends properly.

    A model that is trained only on responses without an end token does not learn to end, and is cut off in
    rollouts.
    """
    if not responses or any(ids[-1] in stops for ids in responses):
        return None if responses or stops else NO_END
    known = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(sorted(stops)))) or "none is named"
    last = tokenizer.convert_ids_to_tokens(responses[0][-1])
    return (
        f"no response ends in a token that engines stop at ({known}), so the model does not learn to end: "
        f"the first ends in {last!r}. Name the token that ends an answer as `eos_token_id` in the model's "
        "generation_config.json, beside those that are there."
    )
