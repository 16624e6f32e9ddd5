"""The commands of launch.py for a live run (attach, drain, control) and for keys of other machines.

Invariants: no secret is an argument or printed: commands name files; exactly the users who may read the run
directory may give orders, and the journal has each order with its user and reason.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import yaml

from controller.cli.command_line import Run
from controller.cli.say import say
from controller.view.orders import ask, is_left_behind, no_controller, operator, order_of
from protocol.errors import ConfigError, NoAnswer
from protocol.files import is_dir, is_file
from protocol.importing import python_path
from protocol.messages import DrainWorker, Role
from protocol.wire.endpoints import find_endpoint
from protocol.wire.security import ROLES, make_keys, refuse_key
from protocol.wire.security import revoke as revoke_key

WAIT_S, LOOK_S = 60.0, 0.2  # as long as a worker waits for an answer


def attach(
    address: Annotated[str, typer.Argument(help="Endpoint of a controller, or its run directory.")],
    role: Annotated[str, typer.Option(help="rollout, reward, agent or trainer")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="key.path=value", help="What this machine does differently."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Shown to people.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="Key made by `keygen`.")] = None,
) -> None:
    """Start a worker here, for a run whose controller is elsewhere."""
    _wait_for_controller(address)
    words = [sys.executable, "-P", "-m", "workers.host", address, *(overrides or []), "--role", role]
    words += ["--name", name] if name else []
    words += ["--key", key] if key else []
    sys.stdout.flush()
    os.execve(sys.executable, words, os.environ | {"PYTHONPATH": python_path()})


def _wait_for_controller(address: str) -> None:
    """Wait a while for the controller of a run directory: the address in it may lead to that of another run.

    Raises: NoAnswer.
    """
    until = time.monotonic() + WAIT_S
    while is_dir(address) and is_file(Path(address) / "address"):
        if not is_left_behind(address, find_endpoint(address)[0]):
            return
        if time.monotonic() >= until:
            raise NoAnswer(no_controller(address))
        time.sleep(LOOK_S)


def keygen(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of keys; made if missing.")],
    role: Annotated[
        list[str] | None, typer.Option(help="What the key is for; may be repeated. Default: rollout.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option(help="Name of a key; may be repeated.")] = None,
) -> None:
    """Make keys for workers on other machines."""
    roles: tuple[Role, ...] = tuple(known for known in ROLES if known in (role or ["rollout"]))
    if unknown := sorted({*(role or [])} - {*ROLES}):
        raise ConfigError(f"{unknown} are no roles; expected some of {', '.join(ROLES)}.")
    names = [*dict.fromkeys(name or ())]
    for each in names:  # all of them, before one is made
        refuse_key(directory, each)
    made = [make_keys(directory, each, roles) for each in names or [None]]
    folder = directory.resolve()
    print(f"{folder} holds the controller's key and the list of those that are admitted. Start the run with")
    print(f"  launch.py CONFIG.yaml controller.bind=tcp://0.0.0.0:29500 controller.keys={folder}")
    for path in filter(None, made):
        print(f"Take {path} to the machine that is to use it, over a channel that you trust, and there:")
        print(f"  launch.py attach tcp://HOST:29500 --role {roles[0]} --key {path.name}")
        print(f"To end it:\n  launch.py revoke {folder} {path.stem}")
    if not name:
        print("No worker's key was made; to make one, add --role rollout --name node1.")


def drain(
    run: Run,
    worker: Annotated[str, typer.Argument(help="Its name, as the console and the log have it.")],
    why: Annotated[str, typer.Option(help="A reason, for the journal.")] = "",
) -> None:
    """Let a worker, but no trainer, hand back its work and leave."""
    say(asyncio.run(ask(run, DrainWorker(worker, operator(), why))))


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
    """Give an order to a live run; it is in the journal, and a replay obeys it too."""
    say(asyncio.run(ask(run, order_of(action, argument, why=why, who=operator()))))


def revoke(
    place: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of keys, or a run directory.")],
    name: Annotated[str, typer.Argument(help="Name of the key.")],
) -> None:
    """Revoke a key. A live run closes the sessions of that key within seconds."""
    config = place / "config.yaml"
    if is_file(config):
        keys = _keys_of(config)
        if not keys:
            raise ConfigError(f"The run in {place} has no keys: `controller.keys` is empty.")
        if not Path(keys).is_absolute():  # of an earlier release
            raise ConfigError(
                f"The run in {place} names its folder of keys {keys!r}, relative to the working directory "
                "that it was started in, which is not known here. Expected the folder itself: "
                f"launch.py revoke FOLDER {name}"
            )
        place = Path(keys)
    place = place.absolute()
    revoke_key(place, name)
    say(f"{place} admits {name} no more.")


def _keys_of(config: Path) -> str:
    """The folder of keys in the configuration of a run. Raises: ConfigError if it is no configuration."""
    try:
        keys = yaml.safe_load(config.read_text())["controller"]["keys"]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(
            f"{config} is no configuration of a run ({what}), so no key was revoked. Expected a run "
            "directory, or the folder of keys itself: launch.py revoke FOLDER NAME."
        ) from error
    return str(keys or "")
