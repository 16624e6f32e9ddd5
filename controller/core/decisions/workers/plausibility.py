"""Plausibility check of worker messages: refuses what contradicts the orders that the worker was given.

Invariants: nothing is changed here; an honest worker is never refused, however late its messages come: those
about orders that were called off meanwhile pass, and change nothing; a message that passes is one that its
sender's role may send, its numbers cannot overflow, and it names only work that the worker was given. Lies
that agree with the worker's orders (tokens that were not sampled, a reward that was not computed) cannot be
detected here.
"""

from collections.abc import Iterator
from itertools import chain
from math import isfinite
from operator import attrgetter

from controller.config.models import Config
from controller.core.state.agents.told_agents import AskLimits, ToldAgent
from controller.core.state.groups import Trajectory
from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker
from controller.core.state.run_state import RunState
from controller.core.state.told import Key, Row, ToldInstance, ToldTextWorker, ToldTrainer, encoded_groups
from protocol import messages
from protocol.ids import TrajectoryId
from protocol.messages import (
    MAX_REWARD,
    MAY_SAY,
    Generated,
    InstanceStatus,
    Message,
)

MAX_CAPACITY = 1_000_000  # trajectories of one engine; a thousand times what the largest run
MAX_TOKENS = 1 << 40  # in one KV cache, or in one report of an engine
MAX_MEMORY_MB = 1 << 30  # of a process, or of a device: a thousand times what the largest machines have
MAX_CHUNKS = 1 << 32  # of one version
MAX_SURVIVORS = 1000  # versions that a trainer may find on its host
CLOCKS = 2.0  # times that a worker measures may differ from ours by this factor,
LATE_S = 60.0  # and by the time that its messages may have been under way
OF_ANY_ROLE = (messages.Ready, messages.Serving, messages.MachineUse, messages.Released)
COUNTERS = (
    "decode_steps", "decode_tokens", "decode_s", "prefill_tokens", "prefill_s", "decode_context",
    "preemptions", "reused_tokens",
)  # fmt: skip
_counted = attrgetter(*COUNTERS)


class Plausibility:
    """Checks each message of an attached worker before it is handled."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._ask_limits: tuple[Config, AskLimits] | None = None

    def objection(self, worker: Worker, message: Message) -> str | None:
        """Why an honest worker would not send this message; None if it might."""
        kind = type(message)
        if kind not in MAY_SAY[worker.role]:
            return f"A {worker.role} worker sent {kind.__name__}, which its role may not say."
        if kind in OF_ANY_ROLE:
            return self._of_any_role(worker, message)
        told = worker.told
        if isinstance(told, ToldInstance):
            assert isinstance(worker, Instance)
            return self._of_instance(worker, told, message)
        if isinstance(told, ToldTextWorker):
            return self._of_text_worker(told, message)
        if isinstance(told, ToldAgent):
            return told.contradiction(message, self.ask_limits())
        assert isinstance(told, ToldTrainer)
        return self._of_trainer(worker, told, message)

    def ask_limits(self) -> AskLimits:
        """The limits of the configuration for asks of episodes."""
        config = self.state.config
        if self._ask_limits is None or self._ask_limits[0] is not config:  # needed for each ask
            self._ask_limits = config, AskLimits.of(config)
        return self._ask_limits[1]

    # -- all roles --------------------------------------------------------------------------------------

    def _of_any_role(self, worker: Worker, message: Message) -> str | None:
        match message:
            case messages.Ready():
                return self._ready(worker, message)
            case messages.Serving():
                return None if worker.told.may_serve else "It said where it serves; nobody has asked."
            case messages.MachineUse():
                return _machine_use(message)
            case messages.Released():
                return _released(worker)
            case _:
                return None

    def _ready(self, worker: Worker, message: messages.Ready) -> str | None:
        if worker.ready:
            return "It said Ready twice."
        capacity, kv_tokens = message.capacity, message.kv_tokens
        if isinstance(worker, Instance):
            if not (1 <= capacity <= MAX_CAPACITY and 1 <= kv_tokens <= MAX_TOKENS):
                return (
                    f"It has room for {capacity} trajectories and {kv_tokens} tokens; expected 1 to "
                    f"{MAX_CAPACITY} and 1 to {MAX_TOKENS}."
                )
            return None
        if isinstance(worker, AgentWorker) and not capacity:
            return "It has room for no episode; expected 1 or more."
        most = MAX_CAPACITY if isinstance(worker, TextWorker | AgentWorker) else 0  # what it can do at once
        if capacity > most or kv_tokens:
            return f"A {worker.role} worker has room for {capacity} trajectories and {kv_tokens} tokens."
        oldest, steps = min(self.state.batches, default=self.state.steps), self.state.steps
        may_go_on = oldest <= message.policy_version <= steps
        if worker.role == "trainer" and not may_go_on and not self.state.config.trainer.local:
            # successors of a local one would begin there too: `TrainerBatches.attach` ends the run instead
            return (
                f"It begins at version {message.policy_version}; the run has made {steps} and keeps the "
                f"batches from version {oldest} on, so expected {oldest} to {steps}."
            )
        return None

    def _took(self, what: str, seconds: float, since: float) -> str | None:
        """Object to a duration longer than the time that has passed here."""
        passed_s = self.state.now - since
        if seconds <= CLOCKS * passed_s + LATE_S:
            return None
        return f"It says that {what} took {seconds:g} s; it was asked {passed_s:.1f} s ago."

    # -- rollout workers --------------------------------------------------------------------------------

    def _of_instance(self, instance: Instance, told: ToldInstance, message: Message) -> str | None:
        match message:
            case Generated():
                return self._generated(instance, told, message)
            case messages.GenerationFailed(group, member, attempt):
                if not told.knows((group, member, attempt)):
                    return _not_given((group, member, attempt))
            case InstanceStatus():
                return self._status(instance, told, message)
            case messages.Pulled():
                return self._pulled(told, message)
            case messages.PullFailed(policy_version):
                if told.pulling is None or told.pulling.policy_version != policy_version:
                    return f"It could not pull version {policy_version}, which it was not told to pull."
            case messages.Holding():
                if told.has_held or instance.ready:
                    return "It said what it holds from before, after it was given something else."
            case _:
                pass
        return None

    def _generated(self, instance: Instance, told: ToldInstance, message: Generated) -> str | None:
        versions = (instance.policy_version, instance.pulling)
        told.lead, told.steady = told.columns.lead(message, versions), []
        if told.lead is not None:
            if told.lead.deltas == len(message.groups):
                return None
            if self._one_by_one(instance, told, message.rows_from(told.lead.deltas)) is None:
                return None
            told.lead = None
        if told.is_steady(message, versions):
            return None
        return self._one_by_one(instance, told, message.rows)

    def _one_by_one(self, instance: Instance, told: ToldInstance, rows: Iterator[Row]) -> str | None:
        """Check deltas one by one; none may be in the columns if others of its report matched these."""
        told_of: dict[Key, tuple[int, bool]] = {}  # tokens reported, and whether the attempt has ended
        has_handed_back = False
        for group, number, attempt, start, count, version, ending in rows:
            key = group, number, attempt
            given = told.given.get(key)
            known = given or told.called_off.get(key)
            if known is None:
                return _not_given(key)
            if told.lead is not None and known.columns is not None:
                return f"It told twice of {_words(key)}."
            reported, has_ended = told_of.get(key, (known.reported, False))
            if not count and not ending:
                return f"It told nothing of {_words(key)}."
            if has_ended or start != reported:
                return f"It told of tokens from {start} on of {_words(key)}; expected from {reported}."
            told_of[key] = reported + count, bool(ending)
            if given is None:
                reason = self._too_many(key, reported + count)
            else:
                is_kept = given.is_kept and version <= self.state.ledger.train_version
                if version not in (instance.policy_version, instance.pulling) and not is_kept:
                    return _of_other_version(instance, version)
                reason = self._of_live(instance, key, reported + count, ending)
                has_handed_back |= ending == "interrupt" and not given.is_called_back
            if reason is not None:
                return reason
        if has_handed_back and told.hand_backs:
            return "It hands back what it is given, again and again; nobody has called it back."
        return None

    def _of_live(self, instance: Instance, key: Key, reported: int, ending: str) -> str | None:
        """What is wrong with a running attempt that has `reported` tokens now."""
        member = self._running(instance, key)
        before = member.response_tokens - member.reported - member.turn_start if member is not None else 0
        tokens = before + reported
        if not tokens and ending in ("stop", "length"):
            return f"It ended {_words(key)} without a token."
        return self._too_many(key, tokens, member)

    def _too_many(self, key: Key, tokens: int, member: Trajectory | None = None) -> str | None:
        group = self.state.groups.get(key[0])
        most = self.state.config.rollout.max_response_tokens
        if member is not None and group is not None:
            most = self.state.most_tokens(group, member)
        elif group is not None:
            most = self.state.longest_response(group)
        if tokens <= most:
            return None
        return f"It told of {tokens} tokens of response {key[0]}.{key[1]}; at most {most} may be."

    def _running(self, instance: Instance, key: Key) -> Trajectory | None:
        group, number, attempt = key
        if instance.running.get(TrajectoryId(group, number)) != attempt:
            return None
        return self.state.groups[group].members[number]

    def _status(self, instance: Instance, told: ToldInstance, message: InstanceStatus) -> str | None:
        if not instance.ready:
            return "It reports its load before it is ready."
        pulling = told.pulling.policy_version if told.pulling is not None else None
        if message.policy_version not in (told.version, pulling):
            return f"It reports version {message.policy_version}, and samples from {told.version}."
        most = max(message.resident_tokens, message.parked_tokens, message.running, message.waiting)
        if most > MAX_TOKENS or max(message.running, message.waiting) > MAX_CAPACITY:
            return f"It reports a load of {most}; no engine has so much."
        for key in message.queued:
            if not told.knows(key):
                return f"{_not_given(key)[:-1]}, as waiting."
        before = instance.status
        if before is None:
            return None
        if message.sequence <= before.sequence:
            return f"It sent report {message.sequence} after report {before.sequence}."
        for name, was, now in zip(COUNTERS, _counted(before), _counted(message), strict=True):
            if now < was:
                return f"Its {name} went back from {was} to {now}."
        spent_s = max(message.decode_s - before.decode_s, message.prefill_s - before.prefill_s)
        return self._took("what it did since its last report", spent_s, told.status_at)

    def _pulled(self, told: ToldInstance, message: messages.Pulled) -> str | None:
        pulling = told.pulling
        if pulling is None or pulling.policy_version != message.policy_version:
            return f"It pulled version {message.policy_version}, which it was not told to pull."
        if pulling.digest != message.digest:
            return (
                f"Version {message.policy_version} has the checksum {message.digest} there; it was published "
                f"with {pulling.digest}."
            )
        if message.refused > MAX_CHUNKS:
            return f"It refused {message.refused} chunks; no version has so many."
        return self._took("a pull", message.pull_s, pulling.since)

    # -- reward workers ---------------------------------------------------------------------------------

    def _of_text_worker(self, told: ToldTextWorker, message: Message) -> str | None:
        match message:
            case messages.PromptsEncoded() | messages.ExamplesEncoded():
                return self._encoded(told, message)
            case messages.GroupScored(group, attempt, rewards, parts):
                count = told.scores.get((group, attempt))
                if count != len(rewards):
                    asked = "which it was not given" if count is None else f"which has {count} members"
                    return f"It gave {len(rewards)} rewards for group {group}, attempt {attempt}, {asked}."
                if problem := self._of_parts(parts, len(rewards)):
                    return f"Of group {group} it gave {problem}."
                for reward in chain(rewards, *(values for _, values in parts)):
                    if not (isfinite(reward) and abs(reward) <= MAX_REWARD):
                        return f"It gave group {group} a reward of {reward:g}; at most {MAX_REWARD:g} counts."
            case messages.ScoreFailed(group, attempt):
                if (group, attempt) not in told.scores:
                    return f"It failed to score group {group}, attempt {attempt}, which it was not given."
            case _:
                pass
        return None

    def _of_parts(self, parts: tuple[tuple[str, tuple[float, ...]], ...], count: int) -> str | None:
        """What is wrong with the named parts of rewards."""
        names = self.state.config.reward_names if parts else ()
        for name, values in parts:
            if name not in names:
                return f"a reward {name!r:.80}, where the run has {', '.join(names) or 'none'}"
            if len(values) != count:
                return f"{len(values)} values of the reward {name}; expected {count}"
        return None if len({name for name, _ in parts}) == len(parts) else "a reward twice"

    def _encoded(
        self, told: ToldTextWorker, message: messages.PromptsEncoded | messages.ExamplesEncoded
    ) -> str | None:
        config = self.state.config
        if isinstance(message, messages.ExamplesEncoded) != config.trainer.is_supervised:
            algorithm = config.trainer.algorithm
            return f"It sent {type(message).__name__} in a run with trainer.algorithm {algorithm}."
        if (groups := encoded_groups(message)) not in told.encodes:
            return f"It encoded {_listed(groups)}; it was not asked for just these."
        longest = config.rollout.max_prompt_tokens, config.rollout.max_response_tokens
        for group, *counts in message.encoded:
            for count, most, what in zip(counts, longest, ("prompt", "response"), strict=False):
                if not 1 <= count <= most:
                    return f"It encoded the {what} of group {group} as {count} tokens; expected 1 to {most}."
        return None

    # -- trainers ---------------------------------------------------------------------------------------

    def _of_trainer(self, trainer: Worker, told: ToldTrainer, message: Message) -> str | None:
        match message:
            case messages.TrainStepFinished(policy_version, train_s, metrics):
                since = told.making.get(policy_version)
                if since is None:
                    return f"It made version {policy_version}, which it was not told to make."
                if bad := [name for name, value in metrics if not isfinite(value)]:
                    return f"Its metric {bad[0]} is not finite."
                return self._corrected(message) or self._took("a train step", train_s, since)
            case messages.TrainedAhead(train_version):
                if train_version not in told.ahead:
                    return f"It trained ahead of the batch of version {train_version}; nobody has asked."
            case messages.CheckpointSaved(policy_version):
                if policy_version not in told.saving:
                    return f"It saved version {policy_version}, which it was not told to save."
            case messages.PolicyPublished():
                return self._published(trainer, told, message)
            case _:
                pass
        return None

    def _corrected(self, message: messages.TrainStepFinished) -> str | None:
        batch = self.state.batches.get(message.policy_version - 1)
        items = batch.items if batch is not None and message.corrected else ()
        known = {(item.group, item.member, item.sampled_tokens) for item in items}
        for place in message.corrected:
            if place not in known:  # or named before
                group, member, count = place
                return f"It corrected {count} tokens of {group}/{member}; expected each of the batch once."
            known.remove(place)
        return None

    def _published(self, trainer: Worker, told: ToldTrainer, message: messages.PolicyPublished) -> str | None:
        version = message.policy_version
        if not message.location:
            return f"It published version {version} nowhere."
        if self.state.config.trainer.is_supervised and trainer.ready:
            return f"It published version {version}; in a supervised run nobody reads it."
        if trainer.ready and version not in told.may_publish:
            return f"It published version {version}, which it was not told to make, or has published before."
        if not trainer.ready and told.announcements >= MAX_SURVIVORS:
            return f"It has found more than {MAX_SURVIVORS} versions on its host."
        return self._took("publishing", message.publish_s, told.since)


def _machine_use(message: messages.MachineUse) -> str | None:
    used, total = message.device_mb, message.device_total_mb
    if used > total or max(message.resident_mb, total) > MAX_MEMORY_MB:
        return (
            f"It takes {message.resident_mb} MB, and {used} of the {total} MB of its device; expected at "
            f"most {MAX_MEMORY_MB} MB, and no more than the device has."
        )
    return None


def _of_other_version(instance: Instance, version: int) -> str:
    """The objection to tokens of a version not told to the instance; only a kept attempt may have others."""
    return f"It told of tokens of version {version}; it samples from {instance.policy_version}" + (
        f", and was told to pull {instance.pulling}." if instance.pulling is not None else "."
    )


def _released(worker: Worker) -> str | None:
    if worker.device != "releasing":
        return "It has left the device; nobody has asked it to."
    if isinstance(worker, Instance) and worker.running:
        return f"It has left the device, and has not handed back {len(worker.running)} of its responses."
    return None


def _words(key: Key) -> str:
    return f"{key[0]}.{key[1]}, attempt {key[2]}"


def _not_given(key: Key) -> str:
    return f"It spoke of {_words(key)}, which it was not given, or has ended before."


def _listed(groups: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, groups[:5]))
    return f"groups {shown}{' ...' if len(groups) > 5 else ''}" if groups else "no groups"
