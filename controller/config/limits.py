"""The section `limits`: how long the run waits for whom.

Invariant: pure, and below the configuration, which includes it.
"""

from pydantic import Field

from protocol.settings import Section


class LimitSettings(Section):
    """How long a worker that is heard may take to do what it was asked.

    Then it is closed, by name, its work moves, and a local one is started again. Only the time counts in
    which the controller itself ran. (A worker that is not heard at all is lost after `controller.lease_s`; a
    call of the reward is ended by `reward.timeout_s`.)
    """

    answer_s: float = Field(default=120.0, gt=0)
    """Seconds for an answer that takes no work: to hand a response back, to encode up to 64 prompts, to say
    where weights are handed on, to leave when told. More than the longest step of an engine."""
    token_s: float = Field(default=600.0, gt=0)
    """Seconds in which a running response gets at least one token. Then it is interrupted and goes on
    elsewhere; an instance that gives no token at all twice in a row is closed, and a prompt is
    set aside if this happens to one of its responses three times."""
    pull_s: float = Field(default=1800.0, gt=0)
    """Seconds to load a policy version. Raise it where whole models travel over slow links."""
    step_s: float = Field(default=7200.0, gt=0)
    """Seconds for a train step, for groups that are trained ahead of it, for the publication of a version,
    and for a checkpoint."""
    ready_s: float = Field(default=3600.0, gt=0)
    """Seconds that a worker from outside may take from attaching to Ready, in which it loads its model. Local
    ones have `controller.attach_timeout_s`."""
    end_s: float = Field(default=600.0, gt=0)
    """Seconds that a run which is to end waits for a trainer from outside that is gone, to save what it has
    made. Then it ends without; the same command goes on with it."""
    absent_s: float = Field(default=86_400.0, gt=0)
    """Seconds for which nobody of a role (rollout, reward, agent, trainer) may be ready before the run ends.
    The same command goes on with it."""
    filtered_batches: int = Field(default=256, ge=0)
    """Batches' worth of groups in a row that `staleness.filter`, or `agent.on_limit: mask`, may drop before
    the run ends, as there is nothing left to learn from; it warns at 4, 16, 64, ... of them. 0: go on for
    ever."""
