"""Rules between fields of a configuration, which no single field can state.

Invariant: pure; a rule names the fields that it reads, their values, and values that would be accepted.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import chain
from urllib.parse import urlsplit

from controller.config.agents.agent_rules import agent_problems
from controller.config.cluster import SHAPES
from controller.config.data_rules import data_problems
from controller.config.devices.one_device import colocation_problems
from controller.config.evaluation import copies_problem, may_never_end
from controller.config.models import Config
from controller.config.reward_rules import reward_problems
from protocol.algorithms import ALGORITHMS, GROUP_BASELINES, LOSSES
from protocol.settings import TrainerSettings, network_of
from strategies.presets import FIXED_BOUND

Problem = tuple[tuple[str, ...], str]
BEATS_PER_LEASE = 3  # one lost and one late beat must not cost a worker its lease
BIND = re.compile(r"auto|ipc://\S+|tcp://(?P<host>[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+|\*)")


def cross_field_problems(config: Config) -> list[Problem]:
    """(fields read, what is wrong) for every rule that does not hold; [] if all do."""
    return [
        *_run_problems(config),
        *data_problems(config),
        *_batch_problems(config),
        *_algorithm_problems(config),
        *_streaming_problems(config),
        *_supervised_problems(config),
        *_sampling_problems(config),
        *_adapter_problems(config),
        *_staleness_problems(config),
        *_controller_problems(config),
        *_evaluation_problems(config),
        *reward_problems(config),
        *agent_problems(config),
        *colocation_problems(config),
        *_weights_problems(config),
        *_notify_problems(config),
        *_cluster_problems(config),
    ]


def _run_problems(config: Config) -> Iterator[Problem]:
    run = config.run
    if run.durability == "off" and run.resume not in ("auto", "never"):
        yield (
            ("run.durability", "run.resume"),
            f"is off, which keeps nothing of a run, and run.resume asks to go on with {run.resume}. Give "
            "`process`, or leave run.resume out.",
        )


def _notify_problems(config: Config) -> Iterator[Problem]:
    url = config.notify.url
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # such as a port that is no number
        is_address = False
    if url and not (is_address and url.isascii() and url.isprintable() and " " not in url):
        yield (
            ("notify.url",),
            "is no address of a webhook: expected http:// or https://, a host, and no white space. Its value "
            "is not shown, as it may be a secret.",
        )


def _batch_problems(config: Config) -> Iterator[Problem]:
    trainer, group_size = config.trainer, config.rollout.group_size
    if trainer.is_supervised:
        group_size = 1  # the response that the data gives
    if trainer.batch_groups % trainer.minibatches:
        most = min(trainer.minibatches, trainer.batch_groups)
        near = chain.from_iterable((most - far, most + far) for far in range(most))
        nearest = next(n for n in near if trainer.batch_groups % n == 0)
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
    if trainer.cpu_offload and trainer.device == "cpu":
        yield (
            ("trainer.cpu_offload", "trainer.device"),
            "is true, but trainer.device is `cpu`, where weights and optimizer are in host memory already; "
            "leave cpu_offload out, or train on a GPU.",
        )
    yield from _sequence_problems(trainer)
    if trainer.lr_schedule != "constant" and trainer.warmup_steps >= config.run.steps:
        yield (
            ("trainer.warmup_steps", "trainer.lr_schedule", "run.steps"),
            f"is {trainer.warmup_steps} of {config.run.steps} train steps (run.steps), so the learning rate "
            f"would never fall as lr_schedule `{trainer.lr_schedule}` says; warm up for fewer steps.",
        )


def _algorithm_problems(config: Config) -> Iterator[Problem]:
    trainer, group_size = config.trainer, config.rollout.group_size
    is_grouped = trainer.baseline in GROUP_BASELINES
    if is_grouped and group_size < 2:
        yield (
            ("rollout.group_size", "trainer.algorithm", "trainer.baseline"),
            f"is {group_size}, but {trainer.algorithm} compares the responses to one prompt with each other; "
            "give at least 2, or another trainer.baseline.",
        )
    if trainer.advantage_scale == "group_std" and not is_grouped and not trainer.is_supervised:
        yield (
            ("trainer.advantage_scale", "trainer.baseline"),
            f"divides by the deviation of a group, but the baseline `{trainer.baseline}` is not the group's; "
            "give batch_std or none, or a baseline of group_mean or leave_one_out.",
        )
    if config.staleness.filter == "zero_variance" and group_size < 2:
        yield (
            ("staleness.filter", "rollout.group_size"),
            f"drops groups whose rewards are all equal, and groups of {group_size} always are, so nothing "
            "would be trained; give a larger rollout.group_size or no filter.",
        )
    if 0 < trainer.dual_clip <= 1:
        yield (
            ("trainer.dual_clip",),
            f"is {trainer.dual_clip:g}, which would cost a token its gradient where the policy has not "
            "moved; give a number above 1 (3 and 10 are usual), or 0 for none.",
        )
    yield from _kl_problems(config)
    yield from _rejection_problems(config)


def _sequence_problems(trainer: TrainerSettings) -> Iterator[Problem]:
    """Refuses `trainer.sequence_ranks` that does not divide the ranks, or goes with LoRA or a critic."""
    size = trainer.sequence_ranks
    if trainer.local and trainer.ranks % size:
        divisors = [str(n) for n in range(1, trainer.ranks + 1) if trainer.ranks % n == 0]
        yield (
            ("trainer.sequence_ranks", "trainer.ranks"),
            f"is {size}, which does not divide trainer.ranks {trainer.ranks}; take {' or '.join(divisors)}.",
        )
    for field, is_set, name in (
        ("trainer.lora", trainer.lora.rank, "LoRA"),
        ("trainer.baseline", trainer.baseline == "value", "a critic"),
    ):
        if size > 1 and is_set:
            yield (
                ("trainer.sequence_ranks", field),
                f"is {size}, which does not go with {name} ({field}); leave one of them out.",
            )


def _streaming_problems(config: Config) -> Iterator[Problem]:
    """Refuses `trainer.streaming` if a batch cannot be trained in parts."""
    for field, reason in config.streaming_obstacles.items() if config.trainer.streaming else ():
        yield (
            ("trainer.streaming", field),
            f"is on, which trains groups before their batch is complete, but {field} {reason}, or leave "
            "trainer.streaming out.",
        )


def _sampling_problems(config: Config) -> Iterator[Problem]:
    rollout, evaluation, trainer = config.rollout, config.evaluation, config.trainer
    if rollout.sampling.temperature == 0 and trainer.engine == "fsdp" and not trainer.is_supervised:
        yield (
            ("rollout.sampling.temperature",),
            "is 0, at which each response is the most probable one: there is no distribution whose logprobs "
            "could be trained, and nothing to compare in a group. Give a temperature above 0; 1 keeps the "
            "policy's own distribution. For greedy held-out answers set evaluation.sampling.temperature.",
        )
    for name, sampling in (("rollout", rollout.sampling), ("evaluation", evaluation.sampling)):
        if sampling.min_tokens > rollout.max_response_tokens:
            yield (
                (f"{name}.sampling.min_tokens", "rollout.max_response_tokens"),
                f"is {sampling.min_tokens}, but rollout.max_response_tokens is "
                f"{rollout.max_response_tokens}, so no response could stop; lower it, or allow more.",
            )


def _supervised_problems(config: Config) -> Iterator[Problem]:
    trainer, temperature = config.trainer, config.rollout.sampling.temperature
    if trainer.is_supervised and temperature != 1:
        yield (
            ("rollout.sampling.temperature", "trainer.algorithm"),
            f"is {temperature:g}, but sft trains the policy's own distribution on what is given; leave it 1.",
        )
    if trainer.is_supervised and (trainer.kl_coefficient or trainer.rejection != "none"):
        yield (
            ("trainer.algorithm", "trainer.kl_coefficient", "trainer.rejection"),
            "is sft, which has no policy that sampled the responses, so nothing can be said of how far it is "
            "away; leave kl_coefficient 0 and rejection none.",
        )
    for key in ("baseline", "advantage_scale", "loss"):
        value, own = getattr(trainer, key), ALGORITHMS["sft"][key]
        if trainer.is_supervised and value != own and not (key == "loss" and value not in LOSSES):
            yield (
                (f"trainer.{key}", "trainer.algorithm"),
                f"is {value}, but sft makes every response of the data likelier, with no reward or policy to "
                f"compare it by; leave it {own}.",
            )


def _adapter_problems(config: Config) -> Iterator[Problem]:
    trainer, lora = config.trainer, config.trainer.lora
    if not lora.rank and lora != type(lora)():
        yield (
            ("trainer.lora.rank", "trainer.lora.alpha", "trainer.lora.target_modules"),
            "is 0, so there is no adapter that the other keys of trainer.lora could be of; give a rank, such "
            "as 16, or leave them out.",
        )
    if lora.rank and trainer.engine != "fsdp":
        yield (
            ("trainer.lora.rank", "trainer.engine"),
            f"is {lora.rank}, but trainer.engine is `{trainer.engine}`, which would publish whole models to "
            "rollout workers that expect adapters; leave trainer.engine `fsdp`, or the rank 0.",
        )


def _kl_problems(config: Config) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.kl_coefficient == 0:
        return
    if trainer.kl_in == "loss" and trainer.kl_estimator == "k1":
        yield (
            ("trainer.kl_estimator", "trainer.kl_in", "trainer.kl_coefficient"),
            "is k1, whose gradient in the loss is that of the logprob, 0 on average whatever the reference "
            "says; give k2 or k3, or put the KL into the reward.",
        )
    if trainer.kl_in == "reward" and trainer.advantage_scale == "group_std":
        yield (
            ("trainer.kl_in", "trainer.advantage_scale", "trainer.kl_coefficient"),
            "is reward, but advantage_scale is group_std, which is the deviation of the rewards before the "
            "KL is known; put the KL into the loss, or give batch_std or none.",
        )


def _rejection_problems(config: Config) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.rejection == "none":
        return
    low, high = trainer.rejection_bounds
    equal = 1.0 if trainer.rejection_metric == "ratio" else 0.0
    if not low <= equal <= high:
        yield (
            ("trainer.rejection_bounds", "trainer.rejection_metric"),
            f"is [{low:g}, {high:g}], which does not hold {equal:g}, the {trainer.rejection_metric} of two "
            "equal policies, so that even fresh tokens are rejected; widen it.",
        )
    if trainer.rejection_action == "clip" and trainer.rejection_metric != "ratio":
        yield (
            ("trainer.rejection_action", "trainer.rejection_metric"),
            f"is clip, which scales a ratio back to its bound; {trainer.rejection_metric} is no ratio. Give "
            "mask or drop, or the metric ratio.",
        )
    spans_groups = (trainer.rejection, trainer.rejection_action) == ("sequence", "drop")
    if (trainer.rejection == "group" or spans_groups) and trainer.proximal != "recompute":
        yield (
            ("trainer.rejection", "trainer.rejection_action", "trainer.proximal"),
            "judges or drops whole groups, which lie in several micro-batches, before the first of them is "
            f"trained; proximal `{trainer.proximal}` has no forward pass before that. Give `recompute`, or "
            "reject single tokens or sequences.",
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
    fixed = {
        "in_flight_batches": staleness.in_flight_batches != "auto",
        "admission": staleness.admission != "window",
        "pacing": staleness.pacing != "adaptive",
    }
    for field in [field for field, is_fixed in fixed.items() if is_fixed]:
        if staleness.objective != "throughput":
            yield (
                ("staleness.objective", f"staleness.{field}"),
                f"is {staleness.objective}, by which the number of groups in the system is to be found, but "
                f"staleness.{field} is {getattr(staleness, field)}, which fixes it otherwise; leave one of "
                "the two out.",
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
    status_s = config.rollout.slowest_status_s
    if controller.stuck_s <= status_s:
        yield (
            ("controller.stuck_s", "rollout.status_s"),
            f"is {controller.stuck_s:g} s, and instances report at least every {status_s:g} s "
            "(rollout.status_s), upon which work may still be placed; give more than that.",
        )
    match = BIND.fullmatch(controller.bind)
    if match is None or (match["port"] and match["port"] != "*" and not 0 < int(match["port"]) < 65536):
        yield (
            ("controller.bind",),
            f"{controller.bind!r} is not an address; expected auto, ipc://PATH or tcp://127.0.0.1:PORT with "
            "a port of 1 to 65535.",
        )
    elif controller.bind.startswith("ipc://@"):
        yield (
            ("controller.bind",),
            f"{controller.bind!r} is a socket without a file: every user of this machine could attach to it; "
            "expected a path in a folder of yours, ipc://PATH, or auto.",
        )
    elif match["host"] and not controller.keys and not _is_loopback(match["host"]):
        yield (
            ("controller.bind", "controller.keys"),
            f"{match['host']} can be reached from other machines, and without keys anybody could attach. "
            "Make them with `launch.py keygen keys --role rollout --name node1`, set controller.keys=keys; "
            "or bind to 127.0.0.1.",
        )


def _evaluation_problems(config: Config) -> Iterator[Problem]:
    evaluation = config.evaluation
    if not evaluation.every_steps:
        return
    if not evaluation.data:
        yield (
            ("evaluation.data", "evaluation.every_steps"),
            f"is empty, but evaluation.every_steps is {evaluation.every_steps}; give held-out prompts, for "
            "example `data: {test: {path: test.jsonl}}`, or set every_steps to 0.",
        )
    if config.trainer.is_supervised:
        yield (
            ("evaluation.every_steps", "trainer.algorithm"),
            f"is {evaluation.every_steps}, but a supervised run has no rollout workers to answer held-out "
            "prompts with; set it to 0, and evaluate in the run that begins with what this one makes.",
        )
    if problem := copies_problem(evaluation.samples, evaluation.sampling):
        yield ("evaluation.samples", "evaluation.sampling.temperature"), problem
    for name, one in evaluation.data.items():
        if may_never_end(one.path) and not one.max_prompts:
            yield (
                (f"evaluation.data.{name}.max_prompts",),
                f"is 0, which is all, but {one.path!r} may never end; give a number.",
            )


def _weights_problems(config: Config) -> Iterator[Problem]:
    """Refuses a `weights.host` that is no address: every host would silently announce another one."""
    host = config.weights.host
    if host and network_of(host) is None:
        yield (
            ("weights.host",),
            f"is {host!r}; expected the address of a host, such as 10.0.0.7, or a network, such as "
            "10.0.0.0/16, of which every host takes its own. Names of hosts and devices are not looked up.",
        )


def _cluster_problems(config: Config) -> Iterator[Problem]:
    """Refuses values that would be read differently in a script or a manifest."""
    for key, (pattern, expected) in SHAPES.items():
        value: str = getattr(config.cluster, key)
        if not re.fullmatch(pattern, value, re.ASCII):
            yield (f"cluster.{key}",), f"is {value!r}; expected {expected}."


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
