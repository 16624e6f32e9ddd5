"""Rules between fields of a configuration, which no single field can state.

Invariant: pure; a rule names the fields that it reads, what their values are, and what would do.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address

from controller.config import Config
from strategies.presets import FIXED_BOUND

Problem = tuple[tuple[str, ...], str]
BEATS_PER_LEASE = 3  # one lost and one late beat must not cost a worker its lease
BIND = re.compile(r"auto|ipc://\S+|tcp://(?P<host>[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+|\*)")


def cross_field_problems(config: Config) -> list[Problem]:
    """(fields read, what is wrong) for every rule that does not hold; [] if all do."""
    return [*_batch_problems(config), *_staleness_problems(config), *_controller_problems(config)]


def _batch_problems(config: Config) -> Iterator[Problem]:
    trainer, group_size = config.trainer, config.rollout.group_size
    if group_size < 2:
        yield (
            ("rollout.group_size", "trainer.algorithm"),
            f"is {group_size}, but {trainer.algorithm} compares the responses to one prompt with each "
            "other; give at least 2.",
        )
    if trainer.batch_groups % trainer.minibatches:
        divisors = [n for n in range(1, trainer.batch_groups + 1) if trainer.batch_groups % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - trainer.minibatches))
        yield (
            ("trainer.minibatches", "trainer.batch_groups"),
            f"{trainer.batch_groups} groups (trainer.batch_groups) do not divide into {trainer.minibatches} "
            f"minibatches; the nearest divisor is {nearest}.",
        )
    elif (responses := trainer.batch_groups // trainer.minibatches * group_size) < trainer.ranks:
        yield (
            ("trainer.ranks", "trainer.batch_groups", "trainer.minibatches", "rollout.group_size"),
            f"{trainer.ranks} trainer ranks share {responses} responses per minibatch, so some would have "
            f"none; use at most {responses} ranks or larger batches.",
        )


def _staleness_problems(config: Config) -> Iterator[Problem]:
    staleness = config.staleness
    in_flight, most = staleness.in_flight_batches, staleness.max_staleness + 1
    if not isinstance(in_flight, str) and not 1 <= in_flight <= most:
        yield (
            ("staleness.in_flight_batches", "staleness.max_staleness"),
            f"is {in_flight:g}; fewer than 1 batch can never be trained, and max_staleness "
            f"{staleness.max_staleness} admits {most}. Give 1 to {most}, or `auto`.",
        )
    bound = FIXED_BOUND.get(staleness.strategy, staleness.max_staleness)
    if staleness.max_staleness != bound:
        yield (
            ("staleness.max_staleness", "staleness.strategy"),
            f"is {staleness.max_staleness}, but the strategy `{staleness.strategy}` is made for {bound}; "
            "leave max_staleness out, or choose another strategy.",
        )


def _controller_problems(config: Config) -> Iterator[Problem]:
    controller = config.controller
    if controller.lease_s < BEATS_PER_LEASE * controller.beat_s:
        yield (
            ("controller.lease_s", "controller.beat_s"),
            f"is {controller.lease_s:g} s, under {BEATS_PER_LEASE} beats of {controller.beat_s:g} s, so one "
            f"late beat would lose a healthy worker; give at least {BEATS_PER_LEASE * controller.beat_s:g}.",
        )
    match = BIND.fullmatch(controller.bind)
    if match is None or (match["port"] and match["port"] != "*" and not 0 < int(match["port"]) < 65536):
        yield (
            ("controller.bind",),
            f"{controller.bind!r} is not an address; expected auto, ipc://PATH or tcp://127.0.0.1:PORT with "
            "a port of 1 to 65535.",
        )
    elif match["host"] and not _is_loopback(match["host"]):
        yield (
            ("controller.bind",),
            f"{match['host']} can be reached from other machines, and connections are not authenticated "
            "yet; bind to 127.0.0.1 and reach it through an SSH tunnel.",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
