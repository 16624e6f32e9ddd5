"""The section `limits`: how long the run waits for workers.

Invariant: pure; `controller/config/models.py` imports this module, which does not import it.
"""

from pydantic import Field

from protocol.settings import Section


class LimitSettings(Section):
    """How long a worker that still sends messages may take for an order.

    After that the controller closes its connection with a warning, its work goes to others, and a local
    worker is started again. Only time in which the controller itself ran counts. (A worker that sends nothing
    at all is lost after `controller.lease_s`; a call of the reward is ended by `reward.timeout_s`.)
    """

    answer_s: float = Field(default=120.0, gt=0)
    """Seconds for an answer that takes little work: to return a response, to encode up to 64 prompts, to say
    where weights are handed on, to leave. Give more than the longest step of an engine takes."""
    token_s: float = Field(default=600.0, gt=0)
    """Seconds in which a running response gets at least one token. After that it is interrupted and goes on
    at another instance; an instance that gives no token at all twice in a row is closed, and a prompt is set
    aside if this happens to one of its responses three times."""
    pull_s: float = Field(default=1800.0, gt=0)
    """Seconds to load a policy version, and for which an instance may reach no source of one. Raise it where
    whole models travel over slow links."""
    step_s: float = Field(default=7200.0, gt=0)
    """Seconds for a train step, for groups that are trained ahead of it, for the publication of a version,
    and for a checkpoint."""
    ready_s: float = Field(default=3600.0, gt=0)
    """Seconds from attaching to Ready, in which a worker loads its model, if the controller did not start the
    worker itself. For local workers see `controller.attach_timeout_s`."""
    end_s: float = Field(default=600.0, gt=0)
    """Seconds for which an ending run waits for a lost trainer that it did not start itself, to save a
    checkpoint. Then the run ends without it; the same command goes on with the run."""
    absent_s: float = Field(default=86_400.0, gt=0)
    """Seconds for which a role (rollout, reward, agent, trainer) may have no ready worker before the run
    ends. The same command goes on with the run."""
    filtered_batches: int = Field(default=256, ge=0)
    """Batches' worth of groups in a row that `staleness.filter`, or `agent.on_limit: mask`, may drop before
    the run ends, as no groups are left to learn from; the run warns at 4, 16, 64, ... of them. 0: no
    limit."""
