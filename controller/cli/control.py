"""`launch.py control RUN ACTION`: orders to a run that goes on, over its own socket.

Invariant: whoever may read the run directory may give orders, and nobody else; each is in the journal with
who and why.
"""

import asyncio
import getpass
import json
import socket
from typing import Annotated, get_args

import typer
import yaml

from controller.cli.command_line import Run
from controller.cli.remote import ask
from controller.cli.say import say
from protocol.errors import ConfigError
from protocol.messages import Action, Control, DrainWorker, Message

ARGUMENTS = {
    "abort": "the number of a group, as in `control RUN abort 512`",
    "set": "a live key, as in `control RUN set samples.groups=8`",
    "drain": "the name of a worker, as in `control RUN drain rollout-1`",
}
"""What an action is about; the others are about the whole run."""


def control(
    run: Run,
    action: Annotated[
        str,
        typer.Argument(help="pause, unpause, checkpoint, evaluate, abort GROUP, drain WORKER, set KEY=VALUE"),
    ],
    argument: Annotated[
        str, typer.Argument(metavar="[GROUP|WORKER|KEY=VALUE]", help="What the action is about.")
    ] = "",
    why: Annotated[str, typer.Option(help="A reason, for the journal and the log.")] = "",
) -> None:
    """Give an order to a run that goes on; it is journalled, and a replay obeys it too."""
    say(asyncio.run(ask(run, order_of(action, argument, why=why, who=operator()))))


def operator() -> str:
    """Who gives orders from here."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def order_of(action: str, argument: str, *, why: str, who: str) -> Message:
    """The message of an order. Raises: ConfigError if there is no such action, or its argument is missing."""
    known = (*get_args(Action), "drain")
    if action not in known:
        raise ConfigError(f"There is no action {action!r}; expected one of {', '.join(known)}.")
    if action in ARGUMENTS and not argument:
        raise ConfigError(f"`{action}` needs {ARGUMENTS[action]}.")
    if action not in ARGUMENTS and argument:
        raise ConfigError(
            f"`{action}` is about the whole run; expected nothing behind it, found {argument!r}."
        )
    if action == "drain":
        return DrainWorker(argument)
    if action == "set":
        argument = _as_json(argument)
    return Control(next(one for one in get_args(Action) if one == action), argument, who, why)


def _as_json(assignment: str) -> str:
    """`key=VALUE` with the value, as YAML has it, in JSON. Raises: ConfigError."""
    key, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"`set` needs {ARGUMENTS['set']}; found {assignment!r}.")
    try:
        return f"{key}={json.dumps(yaml.safe_load(text))}"
    except (yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"The value of {key} is no plain value: {text!r}.") from error
