"""What follows for a training group from each report of a reward worker about it.

Invariants: a group occupies its place in the ledger only with one finite reward and one outcome per response;
the run ends if all prompts are refused, all groups are filtered or the reward function never works; a rare
failure costs a retry, or one prompt.
"""

from collections.abc import Sequence

from controller.core.commands import DropPayload, Warn
from controller.core.effects import recall
from controller.core.effects.futile_groups import FutileGroups
from controller.core.events import OLD_RULES
from controller.core.state.agents.episode_rewards import says_what_turns_earned, turn_rewards
from controller.core.state.groups import Group
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group
from strategies.outcomes import EPSILON, LONE_DIVISOR, TurnsView, outcomes, overlong_penalties

MAX_REFUSED_IN_A_ROW = 256  # then the data does not fit the limits, and reading on is pointless


class TrainingGroups:
    """The purpose `training`: of all groups but held-out ones."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._refused_in_a_row = self._failures_in_a_row = 0
        self._filtered = FutileGroups(state)
        self._first_failure = ""

    def restart(self) -> None:
        """The controller was restarted: failures before that do not count any more."""
        self._refused_in_a_row = self._failures_in_a_row = 0
        self._filtered.reset()

    def on_encoded(self, group: Group) -> None:
        """The prompt may start when its turn comes."""
        move_group(group, "encoded")
        self.state.prompt_tokens = group.prompt_tokens
        self._refused_in_a_row = 0

    def on_refused(self, group: Group, reason: str, worker: str) -> None:
        """Leave the prompt out; end the run if all prompts are refused."""
        move_group(group, "refused")
        del self.state.groups[group.id]
        self.state.emit(DropPayload((group.id,)))
        self.state.accounts.counts["prompts/refused"] += 1
        self.state.warn_once(
            "refused", f"Prompt {group.id} was left out: {reason} Others like it are only counted."
        )
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MAX_REFUSED_IN_A_ROW:
            text = f"{self._refused_in_a_row} prompts in a row were refused, the last by {worker}: {reason}"
            self.state.end(text, is_success=False)

    def on_scored(self, group: Group) -> None:
        """Turn rewards into outcomes and occupy the group's place, unless the filter drops the group."""
        self._failures_in_a_row = 0
        self.state.mixture.on_scored(group.source, group.rewards)
        if not self._is_kept(group):
            shown = self._filtered_rewards(group)
            recall.remove(self.state, group, "filtered")
            self._count_filtered(shown)
            return
        self._filtered.reset()
        lengths, trainer = group.response_lengths, self.state.config.trainer
        most = self.state.longest_response(group)
        group.outcomes = outcomes(
            group.rewards, lengths, settings=trainer, max_tokens=most, lone_divisor=self._lone_divisor()
        )
        if self.state.config.agent.turn_rewards and group.episodes:
            penalties = overlong_penalties(lengths, settings=trainer, max_tokens=most)
            group.turn_outcomes = self._credit(group, penalties if says_what_turns_earned(group) else ())
        move_group(group, "scored")
        group.contribute()  # now, and not when many are consumed at once
        self.state.ledger.occupy(group.id)
        self.remove_useless()

    def on_call_failed(self, group: Group, told: str) -> bool:
        """Count a failure of the reward function; end the run if it never works."""
        del group
        self.state.accounts.counts["reward_failures"] += 1
        self.state.warn_once("reward", told)
        self._first_failure = told if self._failures_in_a_row == 0 else self._first_failure
        self._failures_in_a_row += 1
        if self._failures_in_a_row < self.state.config.reward.max_consecutive_failures:
            return True
        count = f"{self._failures_in_a_row} calls of the reward failed in a row"
        self.state.end(f"{count}. The first: {self._first_failure}", is_success=False)
        return False

    def on_failed(self, group: Group, reason: str) -> None:
        """Set the prompt aside, with a warning that names it; a fresh one takes its place."""
        self.state.accounts.counts["prompts/set_aside"] += 1
        self.state.emit(Warn(f"Prompt {group.id} is set aside, and replaced by a fresh one: {reason}"))
        recall.remove(self.state, group, "aborted")

    def remove_useless(self) -> None:
        """Remove groups that no batch can use any more."""
        for id in self.state.ledger.useless():
            self.state.accounts.counts["groups/useless"] += 1
            recall.remove(self.state, self.state.groups[id], "aborted")

    def _is_kept(self, group: Group) -> bool:
        """Whether `staleness.filter` keeps the group.

        `zero_variance` judges what is trained: where turns have advantages of their own, it is given those of
        the turn in which they differ most, or of all turns if advantages do not compare a turn with the same
        turn of siblings. A user's filter is always given the rewards of the responses.
        """
        keep = self.state.strategies.keep
        if not self._is_filtered_by_turn(group):
            return keep(group.rewards)
        advantages = self._credit(group)
        longest = max(map(len, advantages))
        asked = [[one[turn] for one in advantages if turn < len(one)] for turn in range(longest)]
        if self.state.config.agent.turn_advantages != "returns":
            asked.append([advantage for one in advantages for advantage in one])
        most = max(asked, key=lambda values: max(values) - min(values))
        is_rounding = max(most) - min(most) <= EPSILON
        return keep([0.0] * len(most) if is_rounding else most)

    def _is_filtered_by_turn(self, group: Group) -> bool:
        return self.state.config.filters_by_turn and says_what_turns_earned(group)

    def _credit(self, group: Group, penalties: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        """The advantage of each turn of each response."""
        agent, trainer = self.state.config.agent, self.state.config.trainer
        rewards = tuple(map(tuple, turn_rewards(group, penalties)))
        divisor = self._lone_divisor()
        view = TurnsView(rewards, agent.turn_discount, trainer.baseline, trainer.advantage_scale, divisor)
        return tuple(map(tuple, self.state.strategies.credit(view)))

    def _lone_divisor(self) -> float:
        """The divisor of a reward that is compared with no other, by the rules of the run."""
        return LONE_DIVISOR if self.state.rules > OLD_RULES else EPSILON

    def _filtered_rewards(self, group: Group) -> str:
        """The rewards that the filter judged, for people."""
        if not self._is_filtered_by_turn(group):
            return _listed(group.rewards)
        return f"of turns {'; '.join(map(_listed, turn_rewards(group)[:8]))}"

    def _count_filtered(self, shown: str) -> None:
        """Count a filtered group: a filter that drops everything would let the run go on for ever."""
        self._filtered.count(
            f"were dropped by staleness.filter `{self.state.config.staleness.filter}`, the last with the "
            f"rewards {shown}: nothing is left to train on. Rewards that are all alike mean prompts that are "
            "too easy or too hard, or a reward that does not see the response"
        )


def _listed(rewards: Sequence[float]) -> str:
    return ", ".join(f"{reward:g}" for reward in rewards[:8])
