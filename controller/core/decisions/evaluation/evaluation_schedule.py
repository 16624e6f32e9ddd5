"""Decides when a version is evaluated, skipped, or left out because the operator stops the run.

Invariants: one evaluation is in progress at a time, and at most one waits; a version is evaluated at most
once.
"""

from controller.core.commands import ReadHeldOut
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.run_state import RunState


class EvaluationSchedule:
    """Begins evaluations."""

    def __init__(self, state: RunState, rounds: EvaluationRounds) -> None:
        self.state = state
        self.rounds = rounds
        self._seen = -1  # newest version that was checked

    def run(self) -> None:
        """Note which versions are due, and begin an evaluation if none is in progress."""
        newest = self.state.versions.newest
        if newest is None:
            return
        for version in range(self._seen + 1, newest.policy_version + 1):
            self._seen = version
            if self._is_due(version):
                self._ask(version)
        if self.state.ending is not None and self.rounds.is_final_due and self._seen >= self.state.steps:
            self._ask(self.state.steps)
        if self.rounds.round is None and self.rounds.pending is not None:
            self.rounds.begin(self.rounds.pending)

    def _is_due(self, version: int) -> bool:
        settings = self.state.config.evaluation
        if not self.rounds.is_on:
            return False
        return settings.at_start if version == 0 else version % settings.every_steps == 0

    def _ask(self, version: int) -> None:
        now = self.rounds.round
        if self.rounds.pending is not None:
            self.state.accounts.counts["evaluations/skipped"] += 1
            self.state.warn_once(
                "evaluation skipped",
                f"The evaluation of version {self.rounds.pending} is skipped: that of version "
                f"{now.policy_version if now else version} still went on when version "
                f"{version} was due. Evaluate less often (evaluation.every_steps), fewer prompts or samples, "
                "or raise evaluation.share. Others like it are only counted.",
            )
        self.rounds.pending = self.rounds.asked = version

    def stop(self) -> None:
        """The operator stops the run: do not wait for evaluations."""
        if self.rounds.holds_up_the_end or self.rounds.round is not None:
            self.state.warn_once(
                "evaluation stopped", "The run was stopped before its evaluation was complete."
            )
        self.rounds.is_stopped = True

    def restart(self) -> None:
        """The controller was restarted: ask the host again for rows that it had not read.

        If evaluation is off now, none are read, and an evaluation without its prompts is dropped.
        """
        self.rounds.is_stopped = False
        is_unread = self.rounds.round is not None and self.rounds.round.sources is None
        if not self.rounds.is_on:
            self.rounds.pending = None
            self.rounds.round = None if is_unread else self.rounds.round
        elif self.rounds.round is not None and is_unread:
            self.state.emit(ReadHeldOut(self.rounds.round.first_group))
