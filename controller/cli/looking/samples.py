"""`launch.py samples RUN`: prints prompts and responses, in the terminal or as JSONL.

Invariants: the run is only read, also while it goes on; control characters in responses never reach the
terminal; a group is printed before the next one is read.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from itertools import count
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from controller.cli.command_line import RecordedRun
from controller.cli.say import say
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.history.sample_search import PER_PAGE, SampleQuery, SampleSearch
from controller.history.sample_text import SampleGroup, SampleReader, SampleResponse, SampleToken, lines_of
from protocol.errors import ConfigError
from protocol.plain_text import plain

Colour = Literal["version", "logprob", "drift", "weight"]
Sort = Literal["newest", "reward", "advantage", "length", "drift", "repeats"]
Shown = tuple[SampleGroup, SampleResponse]
MOST_HELD = 4  # groups of a search in memory, of which further responses may follow


class Only(StrEnum):
    """Kinds of samples, as in `sample_search.ONLY`."""

    CUT = "cut"
    PARTIAL = "partial"
    EQUAL = "equal"
    HELD_OUT = "held_out"


VERSION_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")  # by policy version, in turn
LOGPROB_STYLES = ((-0.1, "default"), (-0.7, "green"), (-2.3, "yellow"))  # from 90 %, 50 %, 10 % on
UNLIKELY_STYLE = "red"
DRIFT_STYLES = ((-2.0, "red"), (-0.5, "yellow"), (0.5, "default"), (2.0, "cyan"))  # up to so many nats
LIKELIER_STYLE = "blue"
WEIGHT_STYLES = ((0.0, "red"), (0.8, "yellow"), (1.25, "default"))  # up to so much; 0 is left out
HEAVIER_STYLE = "cyan"
GIVEN_STYLE = "dim"


def samples(
    run: RecordedRun,
    step: Annotated[int | None, typer.Option(help="Of this train step; default: the newest.")] = None,
    group: Annotated[int | None, typer.Option(help="Of this group alone.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Of all steps, unless --step is given.")] = False,
    most: Annotated[
        int, typer.Option("--responses", min=1, help="Show so many responses of a group: best and worst.")
    ] = 4,
    by: Annotated[Colour, typer.Option("--by", help="What the colour of a token says.")] = "version",
    find: Annotated[str, typer.Option(help="With this text in prompt or response, whatever the case.")] = "",
    version: Annotated[int | None, typer.Option(min=0, help="With tokens of this policy version.")] = None,
    reward_from: Annotated[float | None, typer.Option(help="With this reward at least.")] = None,
    reward_to: Annotated[float | None, typer.Option(help="With this reward at most.")] = None,
    age: Annotated[int, typer.Option(min=0, help="With a token so many versions old at least.")] = 0,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Of this data source.")] = None,
    only: Annotated[
        list[Only] | None,
        typer.Option(help="Cut off; of several versions; of groups whose rewards are equal; held out."),
    ] = None,
    sort: Annotated[Sort, typer.Option(help="The greatest first; repeats: of 4 tokens.")] = "newest",
    up: Annotated[bool, typer.Option("--up", help="The smallest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="So many responses of those that were looked for.")] = 20,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object per response, with all.")] = False,
) -> None:
    """Show kept samples: prompts and responses as they were trained, tokens coloured by policy version.

    With a filter or a sort: single responses, of all steps or of one.
    """
    query = SampleQuery(
        version=version, reward_from=reward_from, reward_to=reward_to, age=age, source=source,
        only=tuple(only or ()), text=find, sort=sort, is_ascending=up,
    )  # fmt: skip
    with Recording(run) as recording:
        reader = SampleReader(recording)
        if query.is_empty:
            keys = _wanted(reader, step, group, every, run, recording.config())
            found = (reader.read(*key) for key in keys)
            shown: Iterable[Shown] = (
                (sample, one)
                for sample in found
                if sample is not None
                for one in (sample.responses if jsonl else _best_and_worst(sample.responses, most))
            )
        else:
            shown = _searched(recording, reader, replace(query, step=step, group=group), limit, run)
        _tell(reader, shown, by=by, jsonl=jsonl)


def _tell(reader: SampleReader, shown: Iterable[Shown], *, by: Colour, jsonl: bool) -> None:
    """Print these responses, and a note if texts or trainer figures are missing."""
    if jsonl:
        for sample, one in shown:
            for line in lines_of(replace(sample, responses=(one,))):
                print(json.dumps(line), flush=True)
        return
    if not reader.has_text:
        say("The run's tokenizer is not here, so tokens are shown by their numbers.", is_error=True)
    is_told = by not in ("drift", "weight")

    def noting() -> Iterator[Shown]:
        nonlocal is_told
        for sample, one in shown:
            is_told = is_told or sample.is_corrected
            yield sample, one

    show_responses(noting(), by=by)
    if not is_told:
        say("The trainer told nothing of these tokens: no drift and no weight is known.", is_error=True)


def _searched(
    recording: Recording, reader: SampleReader, query: SampleQuery, limit: int, run: str
) -> Iterator[Shown]:
    """The first `limit` responses that a query finds. Raises: ConfigError if there is none."""
    search, keys = SampleSearch(), list[tuple[int, int, int]]()
    for page in count():
        asked = replace(query, page=page)
        known = search.find(recording, asked, texts=lambda key: reader.texts(*key), is_late=lambda: False)
        names = ("step", "group", "member")
        keys += zip(*(known.lines[name].tolist() for name in names), strict=True)
        if (page + 1) * PER_PAGE >= min(limit, known.count):
            break
    read, is_any = lru_cache(MOST_HELD)(reader.read), False
    for step, group, member in keys[:limit]:
        if (sample := read(step, group)) is not None:
            is_any = True
            yield from ((sample, one) for one in sample.responses if one.member == member)
    if not is_any:
        raise ConfigError(
            f"{run} holds no sample like that, of {len(search.index.table)} responses that are kept. Leave "
            "a filter out."
        )


def _wanted(
    reader: SampleReader, step: int | None, group: int | None, every: bool, run: str, config: Config
) -> list[tuple[int, int]]:
    """Keys of the samples that were asked for. Raises: ConfigError if there are none."""
    keys = reader.kept()
    if not keys:
        if config.trainer.is_supervised:
            raise ConfigError(
                f"{run} trains on given responses (trainer.algorithm: sft), and keeps no samples: the model "
                "says nothing in it. Expected a run that generates; its data has what it was trained on."
            )
        raise ConfigError(
            f"{run} holds no samples: none of its steps is finished yet, or samples.groups was 0. Expected "
            "a run with samples.groups of 1 or more; the key may be changed when a run goes on."
        )
    steps = sorted({kept for kept, _ in keys})
    if group is not None:
        wanted = [key for key in keys if key[1] == group and step in (None, key[0])]
    elif every or step is not None:
        wanted = [key for key in keys if step in (None, key[0])]
    else:
        wanted = reader.newest()
    if not wanted:
        groups = ", ".join(str(kept) for _, kept in keys[-8:])
        raise ConfigError(
            f"{run} holds no sample of that step or group. Steps {steps[0]} to {steps[-1]} have some; the "
            f"newest groups are {groups}."
        )
    return wanted


def show(found: list[SampleGroup], *, most: int, by: Colour, console: Console | None = None) -> None:
    """Print these groups, with the best and the worst responses of each."""
    ranked = [(sample, one) for sample in found for one in _best_and_worst(sample.responses, most)]
    show_responses(ranked, by=by, console=console)


def show_responses(shown: Iterable[Shown], *, by: Colour, console: Console | None = None) -> None:
    """Print these responses, with a heading above consecutive responses of one group."""
    console = console or Console(highlight=False, soft_wrap=True)
    last = None
    for sample, one in shown:
        if (sample.step, sample.group) != last:
            if last is not None:
                console.print()
            console.print(_heading(sample))
            if sample.prompt:  # episodes of an agent have each their own
                console.print(Text("prompt: ", style="dim") + Text(plain(sample.prompt)))
        last = sample.step, sample.group
        console.print(_headline(one))
        console.print(Text.assemble(*_coloured(one.tokens, by)))
    console.print()


def _heading(sample: SampleGroup) -> Text:
    rewards = [one.reward for one in sample.responses]
    place = f"step {sample.step}, group {sample.group}"
    told = f"{place} (kept for: {sample.why}), staleness {sample.staleness}"
    if sample.is_held_out:
        told = f"held out, answered before {place}"
    return Text(f"{told}, rewards {min(rewards):g} to {max(rewards):g}", style="bold")


def _headline(one: SampleResponse) -> Text:
    versions = ", ".join(map(str, one.policy_versions)) or "none"
    parts = "".join(f", {name} {value:g}" for name, value in one.parts.items())
    advantage = "" if one.advantage is None else f", advantage {one.advantage:+.3g}"
    return Text(
        f"  {one.member}: reward {one.reward:g}{parts}{advantage}, "
        f"{len(one.tokens)} tokens by version {versions}, ends by {one.ending or '?'}",
        style="dim",
    )


def _best_and_worst(responses: tuple[SampleResponse, ...], most: int) -> list[SampleResponse]:
    ranked = sorted(responses, key=lambda one: -one.reward)
    if len(ranked) <= most:
        return ranked
    worst = most // 2
    return ranked[: most - worst] + (ranked[-worst:] if worst else [])


def _coloured(tokens: tuple[SampleToken, ...], by: Colour) -> Iterator[tuple[str, str]]:
    for token in tokens:
        yield plain(token.text), _style(token, by)


def _style(token: SampleToken, by: Colour) -> str:
    if token.policy_version is None or token.logprob is None:
        return GIVEN_STYLE
    if by == "version":
        return VERSION_STYLES[token.policy_version % len(VERSION_STYLES)]
    if by == "drift":
        return _up_to(token.drift, DRIFT_STYLES, LIKELIER_STYLE)
    if by == "weight":
        return _up_to(token.weight, WEIGHT_STYLES, HEAVIER_STYLE)
    return next((style for least, style in LOGPROB_STYLES if token.logprob >= least), UNLIKELY_STYLE)


def _up_to(number: float | None, styles: tuple[tuple[float, str], ...], beyond: str) -> str:
    """The style of a number; dim if the trainer did not report it."""
    return (
        GIVEN_STYLE if number is None else next((style for most, style in styles if number <= most), beyond)
    )
