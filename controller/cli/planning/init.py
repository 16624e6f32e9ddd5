"""`launch.py init`: writes a commented configuration and a reward file that run, from a few answers.

Invariants: no existing file is overwritten; the configuration passes `launch.py check` on this machine; every
question has a flag, and without a terminal flags and defaults count.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.needs import require_folder
from controller.cli.say import say
from install.project import launcher
from protocol.errors import ConfigError
from protocol.files import exists, is_file
from protocol.model_shape import checked, text_shape
from protocol.plain_text import is_plain_line

ROOT = Path(__file__).resolve().parents[3]
TASK = ROOT / "examples" / "ledger_task.py"
PROMPTS = ("prompt", "question", "problem", "instruction", "input", "messages")
ANSWERS = ("answer", "solution", "target", "label", "gold", "output")
KINDS = ("function", "math", "exact", "choice")
MOST_TOKENS = 3072  # of prompt and response; fewer where the model has fewer positions

REWARD = '''"""The reward of this run: a number for each response, the higher the better."""


def score(completion: str, answer: str) -> float:
    """1.0 if the response gives the answer behind its last {mark!r}, or at its end.

    `completion` is what the model said; every column of the row may be a parameter too, as `answer` is here
    (also `prompt`, `ending`; `**columns` takes all; an async function and whole groups: docs/rewards.md).
    """
    said = completion.rpartition({mark!r})[2].strip().rstrip(".")
    return float(said.endswith(str(answer).strip()))
'''

CONFIG = """\
# yaml-language-server: $schema={schema}
# Train:   {launcher} {file}
# Look:    {launcher} check {file}      what would go wrong, before anything starts
# All keys: docs/configuration.md; any is overridden on the command line, as run.steps=10

run:
  name: {name}              # its folder is {run}; the same command goes on with it
  steps: {steps}                # policy versions to make

model:
{model}

data:
{data}

reward:
{reward}

rollout:
{rollout}
  group_size: {group_size}            # responses per prompt: what advantages compare
  max_prompt_tokens: {max_prompt_tokens}
  max_response_tokens: {max_response_tokens}
  sampling:
    temperature: 1.0

trainer:
  algorithm: grpo
  batch_groups: {batch_groups}          # prompts per policy version
  lr: {lr}
  checkpoint_steps: 20      # between two checkpoints, to begin from or to serve

staleness:
  max_staleness: 2          # no trajectory older than two versions is ever trained; 0 is synchronous

samples:
  groups: 4                 # of each step, to read: {launcher} samples {run}
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of the user."""

    name: str
    model: str = ""  # "": the little model of the quickstart, which needs no GPU
    data: str = ""  # "": its task
    reward: str = "function"
    gpus: int = 0
    steps: int = 100


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where the files go; made if missing.")
    ] = Path("my_run"),
    model: Annotated[
        str | None, typer.Option(help="A Hugging Face folder; without one the quickstart's little model.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Prompts as .jsonl; without them the quickstart's task.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="function (a file that you edit), math, exact or choice.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of this machine to use; 0: none.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Policy versions to make.")] = 100,
) -> None:
    """Write a configuration with comments, and a reward file, that run."""
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    chosen = _asked(model, "Folder of the model (none: a little one, no GPU)", "", asks=asks)
    rows = _asked(data, "File of prompts, .jsonl (none: the quickstart's)", "", asks=asks and bool(chosen))
    kind = _asked(reward, f"Reward ({', '.join(KINDS)})", KINDS[0], asks=asks and bool(rows))
    count = _asked(
        None if gpus is None else str(gpus), "GPUs", "1" if chosen else "0", asks=asks and bool(chosen)
    )
    if not count.isdecimal():
        raise ConfigError(f"GPUs are {count!r}; expected a whole number from 0.")
    answers = Answers(folder.resolve().name, chosen, rows, kind, int(count), steps)
    files = files_of(answers, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}. Name a folder that you may write to."
        ) from error
    say("\n".join(["Written:", *(f"  {path}" for path in files)]))
    config = next(iter(files))
    shown = shlex.quote(f"./{config}" if str(config).startswith("-") else str(config))
    say(f"Next:\n  {launcher()} check {shown}\n  {launcher()} {shown}")


def _asked(flag: str | None, question: str, default: str, *, asks: bool) -> str:
    """The flag, or the user's answer, or without a terminal the default."""
    if flag is not None:
        return flag
    return str(typer.prompt(question, default=default, show_default=bool(default))) if asks else default


def files_of(answers: Answers, folder: Path) -> dict[Path, str]:
    """The files to write, the configuration first.

    Raises: ConfigError if an answer is not usable, or a file exists.
    """
    places = {"The folder": str(folder.resolve()), "--model": answers.model, "--data": answers.data}
    for what, path in places.items():
        if not is_plain_line(path):
            raise ConfigError(
                f"{what} is {path!r}, which a configuration cannot name: it is no line of plain text. Rename "
                "it."
            )
    if answers.reward not in KINDS:
        raise ConfigError(f"--reward is {answers.reward!r}; expected one of {', '.join(KINDS)}.")
    if answers.model and not is_file(Path(answers.model) / "config.json"):
        raise ConfigError(f"--model {answers.model} has no config.json; expected a Hugging Face folder.")
    if answers.data and not answers.model:
        raise ConfigError("--data needs --model: the quickstart's little model knows its own task alone.")
    if answers.reward == "choice" and not answers.data:
        raise ConfigError(
            "--reward choice needs --data: the quickstart's task, which is taken without it, has digits as "
            "answers, and no letters. Expected function, math or exact, or rows of your own."
        )
    if not (answers.model and answers.data):
        require_folder(
            "The quickstart's model and task, which are taken without --model and --data, are a part"
        )
    columns = columns_of(Path(answers.data)) if answers.data else {}
    files = {folder / "run.yaml": _config(answers, folder / "run.yaml", columns)}
    if answers.reward == "function":
        mark = "####" if answers.data else "#"
        files[folder / "reward.py"] = REWARD.format(mark=mark)
    for path in files:
        if exists(path):
            raise ConfigError(f"{path} is there already; expected a folder without it. Give another one.")
    return files


def columns_of(data: Path) -> dict[str, str]:
    """The columns of prompt and answer, found by usual names.

    Raises: ConfigError if the file is no JSONL, or has no such columns.
    """
    try:
        with data.open(encoding="utf-8-sig") as file:
            row = json.loads(next((line for line in file if line.strip()), ""))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--data {data} is no JSONL: {error}. Expected an object in each line.") from error
    if not isinstance(row, Mapping):
        raise ConfigError(f"The first line of {data} is no object; expected one with a prompt and an answer.")
    prompt = next((name for name in PROMPTS if name in row), None)
    answer = next((name for name in ANSWERS if name in row and name != prompt), None)
    if prompt is None or answer is None:
        raise ConfigError(
            f"The first line of {data} has {', '.join(map(str, row)) or 'nothing'}; expected a prompt "
            f"({', '.join(PROMPTS)}) and an answer ({', '.join(ANSWERS)}). Rename them."
        )
    return {"prompt": prompt, "answer": answer}


def _config(answers: Answers, file: Path, columns: Mapping[str, str]) -> str:
    is_small = not answers.model
    if is_small:
        model = f"  factory: {_quoted(f'{TASK}:make_model')}   # made in the run directory, once"
        data = f"  path: {_quoted(f'{TASK}:prompts')}"
    else:
        model = f"  path: {_quoted(Path(answers.model).resolve())}"
        named = ", ".join(f"{ours}: {theirs}" for ours, theirs in columns.items() if ours != theirs)
        rows = Path(answers.data).resolve() if answers.data else f"{TASK}:prompts"
        data = f"  path: {_quoted(rows)}"
        data += f"\n  columns: {{{named}}}    # ours: yours" if named else ""
    reward = "  function: reward.py:score    # beside this file"
    if answers.reward != "function":
        reward = f"  rewards:\n    - {{kind: {answers.reward}}}    # options: docs/reward_kinds.md"
    prompt_tokens, response_tokens = (40, 144) if is_small else _lengths(Path(answers.model))
    instances = max(1, answers.gpus - 1) if answers.gpus else 2
    engine = "vllm" if answers.gpus > 1 else "torch"
    rollout = f"  engine: {engine}\n  instances: {instances}              # processes that generate"
    schema = ROOT / "docs" / "configuration.schema.json"
    config = CONFIG if exists(schema) else CONFIG.partition("\n")[2]
    return config.format(
        schema=schema, launcher=launcher(), file=shlex.quote(str(file)),
        name=_quoted(answers.name), run=shlex.quote(f"runs/{answers.name}"), steps=answers.steps, model=model,
        data=data, reward=reward, rollout=rollout,
        group_size=16 if is_small else 8, max_prompt_tokens=prompt_tokens,
        max_response_tokens=response_tokens, batch_groups=32, lr="5e-4" if is_small else "1e-6",
    )  # fmt: skip


def _quoted(value: str | Path) -> str:
    """A text in quotes of YAML, so that it stays a text, with `${` escaped."""
    return json.dumps(str(value), ensure_ascii=False).replace("${", "$${")


def _lengths(model: Path) -> tuple[int, int]:
    """Tokens of prompt and response for the model's context. Raises: ConfigError for a bad config.json."""
    try:
        shape = checked(json.loads((model / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--model {model} cannot be read: {error}. Save or download the model again."
        ) from error
    most = min(MOST_TOKENS, text_shape(shape).get("max_position_embeddings") or MOST_TOKENS)
    return most // 3, most - most // 3
