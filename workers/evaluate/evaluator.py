"""Answers rows and scores the answers, for `launch.py eval`, in a process of `protocol.asking`.

Invariants: a row counts with all of its attempts or not at all; failures are reported, and are not rewards.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from protocol.errors import ConfigError, RunError, first_cause
from protocol.rewards.kinds import entry_of
from protocol.settings import WorkerSettings, load_settings
from workers.evaluate.checkpoint import CheckpointEpisodes, CheckpointResponses
from workers.evaluate.engine import LocalEngine
from workers.evaluate.played import Lost, Played
from workers.evaluate.rows_so_far import RowsSoFar
from workers.reward.api_key import api_key
from workers.reward.child import ScoringFailed
from workers.reward.kinds.interface import Place
from workers.reward.mixture import RewardMixture
from workers.reward.together import all_of


class Player(Protocol):
    """Plays attempts at rows."""

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """One attempt. Raises: Lost, ConfigError."""
        ...


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """`rows`, each with the results of its attempts or with `failed`; or else `problem`."""
    try:
        return {"rows": asyncio.run(_evaluate(question))}
    except (ConfigError, RunError, BaseExceptionGroup) as error:
        first = first_cause(error)
        if not isinstance(first, ConfigError | RunError):
            raise
        return {"problem": str(first)}


async def _evaluate(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Raises: ConfigError, RunError, directly or in groups."""
    settings = load_settings(question["settings"])
    async with AsyncExitStack() as stack:
        mixture = _mixture(settings)
        if mixture is not None:
            await stack.enter_async_context(mixture)
            await mixture.start()
        player = await _player(stack, settings, question)
        slots = asyncio.Semaphore(question["concurrency"])
        transcripts = Path(question["transcripts"]) if question["transcripts"] else None
        so_far = RowsSoFar(len(question["rows"]), _teller(question.get("progress_to")), time.monotonic)
        evaluator = _Evaluator(player, mixture, slots, transcripts, so_far)
        rows = enumerate(question["rows"])
        return await all_of([evaluator.row(number, row, samples=question["samples"]) for number, row in rows])


async def _player(stack: AsyncExitStack, settings: WorkerSettings, question: Mapping[str, Any]) -> Player:
    is_agent = settings.agent.is_on
    if question["base_url"]:
        from workers.evaluate.endpoint import Endpoint, EndpointEpisodes, EndpointResponses  # an extra

        key = api_key("OPENAI_API_KEY")
        sampling = settings.evaluation_sampling
        endpoint = Endpoint(question["base_url"], question["model"], key, sampling)
        await stack.enter_async_context(endpoint)
        if not is_agent:
            return EndpointResponses(settings, endpoint)
        return await stack.enter_async_context(EndpointEpisodes(settings, endpoint))
    directory = question["directory"]
    engine = await stack.enter_async_context(LocalEngine(settings, directory, question["adapter"]))
    if not is_agent:
        return CheckpointResponses(settings, directory, engine)
    episodes = CheckpointEpisodes(settings, directory, engine, samples=question["samples"])
    return await stack.enter_async_context(episodes)


def _mixture(settings: WorkerSettings) -> RewardMixture | None:
    """The rewards that score answers; None if episodes have their own rewards."""
    place = Place(settings.run_dir, settings.reward.device, settings.reward.sandbox)
    other = settings.evaluation_function
    entries = (entry_of(other),) if other else settings.reward.entries
    if not entries:
        return None
    field = "evaluation.reward_function" if other else "reward.function"
    return RewardMixture(
        entries, settings.reward, place=place, import_paths=settings.import_paths, field=field
    )


def _teller(descriptor: int | None) -> Callable[[str], object]:
    """A function that writes a line to an inherited descriptor, as long as it is read."""

    def tell(sentence: str) -> None:
        if descriptor is not None:
            with suppress(OSError):
                os.write(descriptor, f"{sentence}\n".encode())

    return tell


class _Evaluator:
    def __init__(
        self,
        player: Player,
        mixture: RewardMixture | None,
        slots: asyncio.Semaphore,
        transcripts: Path | None,
        so_far: RowsSoFar,
    ) -> None:
        self._so_far = so_far
        self._player, self._mixture, self._slots, self._transcripts = player, mixture, slots, transcripts

    async def row(self, number: int, row: Mapping[str, Any], *, samples: int) -> dict[str, Any]:
        """The results of the attempts at a row. Raises: ConfigError; RunError if it cannot be saved."""
        try:
            played = await all_of([self._attempt(number, sample, row) for sample in range(samples)])
            rewards, parts = await self._score(number, row, played)
        except (Lost, ScoringFailed) as error:
            self._so_far.count(None)
            return {"failed": str(error)}
        self._so_far.count(rewards)
        self._keep(number, row, played, rewards)
        return {
            "rewards": rewards, "lengths": [one.tokens for one in played], "parts": parts,
            "cut": sum(one.ending == "length" for one in played), "turns": [one.turns for one in played],
            **({"forks": forks} if (forks := [cause for one in played for cause in one.forks]) else {}),
            **({"overhead_ms": ms} if (ms := [each for one in played for each in one.overhead_ms]) else {}),
        }  # fmt: skip

    async def _attempt(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        async with self._slots:
            return await self._player.play(number, sample, row)

    async def _score(
        self, number: int, row: Mapping[str, Any], played: Sequence[Played]
    ) -> tuple[list[float], list[Any]]:
        """Raises: Lost, ScoringFailed."""
        own = [one.reward for one in played if one.reward is not None]
        if len(own) == len(played):
            return own, []
        if self._mixture is None:
            raise Lost(
                "The agent returned None, and there is no `reward.function` that could score what was said."
            )
        asked = [one for one in played if one.reward is None]  # of others, no messages are kept
        lists = (
            [one.completion for one in asked], [one.completion_ids for one in asked],
            [one.ending for one in asked],
        )  # fmt: skip
        if asked[0].said:
            lists += ([one.said or [] for one in asked], [one.talk or [] for one in asked])
        request = (number, json.dumps(row).encode(), asked[0].prompt, asked[0].prompt_ids, *lists)
        scored = await self._mixture.score(request, members=len(asked))
        answers = iter(scored.rewards)
        rewards = [next(answers) if one.reward is None else one.reward for one in played]
        return rewards, list(scored.parts)

    def _keep(
        self, number: int, row: Mapping[str, Any], played: Sequence[Played], rewards: Sequence[float]
    ) -> None:
        if self._transcripts is None:
            return
        lines = [
            json.dumps({
                "row": number, "sample": sample, "reward": reward, "ending": one.ending,
                "turns": one.turns, "tokens": one.tokens, "transcript": one.transcript, "columns": row,
            })
            for sample, (one, reward) in enumerate(zip(played, rewards, strict=True))
        ]  # fmt: skip
        try:
            with self._transcripts.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise RunError(
                f"The transcripts of row {number} could not be written: {error}. Make room there, or leave "
                "-o out."
            ) from None
