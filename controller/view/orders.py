"""Gives orders to a live run over its socket, for `launch.py control` and the page Controls.

Invariant: exactly the users who may read the run directory may give orders.
"""

import asyncio
import getpass
import json
import os
import socket
from pathlib import Path
from typing import get_args

import yaml

from controller.config.yaml_file import read_yaml
from controller.durability.holder import is_held
from protocol.errors import ConfigError, NoAnswer
from protocol.files import is_dir
from protocol.messages import Action, Close, Control, DrainWorker, Message
from protocol.wire.connection import Connection
from protocol.wire.endpoints import find_endpoint, is_loopback
from protocol.wire.security import load_worker_key
from protocol.wire.sockets import Frames

ANSWER_S = 10.0
ARGUMENTS = {
    "abort": "the number of a group, as in `control RUN abort 512`",
    "set": "a live key, as in `control RUN set samples.groups=8`",
    "drain": "the name of a worker, as in `control RUN drain rollout-1`",
}
"""Arguments of actions; other actions are about the whole run."""


def operator() -> str:
    """The name of this process's user and host, for orders."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user whom the system does not know
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def order_of(action: str, argument: str, *, why: str, who: str) -> Message:
    """The message of an order. Raises: ConfigError if there is no such action, or its argument is missing."""
    argument = argument.strip()
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
        return DrainWorker(argument, who, why)
    if action == "set":
        argument = _as_json(argument)
    return Control(next(one for one in get_args(Action) if one == action), argument, who, why)


def _as_json(assignment: str) -> str:
    """`key=VALUE` with the value, as YAML has it, in JSON. Raises: ConfigError."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError(f"`set` needs {ARGUMENTS['set']}; found {assignment!r}.")
    try:
        return f"{key}={json.dumps(read_yaml(text)[0])}"
    except (yaml.YAMLError, TypeError, ValueError):
        raise ConfigError(f"The value of {key} is no plain value: {text!r:.80}.") from None


async def ask(run: str, message: Message) -> str:
    """Send an order; returns the answer. Raises: NoAnswer; ConfigError without a run, or if it is refused."""
    endpoint, key = find_endpoint(run)
    if is_left_behind(run, endpoint):
        raise NoAnswer(no_controller(run))
    answer: asyncio.Future[Close] = asyncio.get_running_loop().create_future()

    def on_message(message: Message, frames: Frames) -> None:
        if isinstance(message, Close) and not answer.done():
            answer.set_result(message)

    connection = Connection(
        endpoint, on_message=on_message, on_fault=lambda text: None,
        key=load_worker_key(key) if key else None,
    )  # fmt: skip
    try:
        connection.start()
        connection.send(message)
        async with asyncio.timeout(ANSWER_S):
            close = await answer
    except TimeoutError:
        told = f"No controller answered at {endpoint} within {ANSWER_S:g} s. {_where_it_is(run)}"
        raise NoAnswer(told) from None
    finally:
        connection.close()
    if close.is_fault:
        raise ConfigError(close.reason)
    return close.reason


def is_left_behind(run: str, endpoint: str) -> bool:
    """Whether a killed run has left the endpoint in its directory, or this is the copy of a run.

    Another run may listen there. `endpoint`: by `find_endpoint`; one of another machine is believed.
    """
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return is_dir(run) and (endpoint.startswith("ipc://") or is_loopback(host)) and not is_held(Path(run))


def no_controller(run: str) -> str:
    """What to do about a run directory without a controller."""
    return (
        f"No controller is at work on {run} here: `launch.py status {run}` says how the run stands, and the "
        "command that started it goes on with it."
    )


def _where_it_is(run: str) -> str:
    """What to do about a controller that does not answer. `run`: a directory, or an endpoint."""
    if is_dir(run) and not is_held(Path(run)):
        return no_controller(run)
    return "If it is at work, `launch.py stacks` of the run says where it stands."


async def give(run: str, action: str, argument: str, why: str) -> str:
    """Give an order in the name of who runs this process, and return the answer. Raises: ConfigError."""
    return await ask(run, order_of(action, argument, why=why, who=operator()))
