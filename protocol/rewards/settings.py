"""The section `reward`: who scores responses, and what a score may take."""

from pydantic import Field

from protocol.rewards.kinds import AnyReward, NamedReward, Sandbox, entry_of
from protocol.section import Section


class RewardSettings(Section):
    """Scoring."""

    function: str = ""
    """Import path `module:function` or `file.py:function`. Called in a process of its own; sync or async; see
    docs/rewards.md for the signatures understood. Or the name of a built-in reward that needs no options,
    such as `math`."""
    rewards: tuple[AnyReward, ...] = Field(default=(), strict=False)
    """Several rewards, or one with options, in place of `function`; the weighted sum counts. Each is a
    mapping with `kind` (see docs/rewards.md) or `function`, and if need be `name`, `weight`, `when`,
    `timeout_s` and the options of its kind."""
    workers: int = Field(default=1, ge=0)
    """Local reward workers."""
    processes: int = Field(default=1, ge=1)
    """Processes in which one worker calls the function side by side."""
    concurrency: int = Field(default=100, ge=1)
    """Calls of an `async def` function in flight in each process, across groups: a function of a whole group
    counts one per group, one of a response as many as the group has responses, which are never split. 100 is
    what HTTP clients such as httpx and aiohttp have connections for; give what the judge bears. A function
    that is not async has one group at a time in each process."""
    timeout_s: float = Field(default=30.0, gt=0)
    """A response that takes longer fails its group, or a group that does where the function takes a whole
    group. An async call is cancelled; the process of another, or of one that does not obey, is killed."""
    memory_mb: int = Field(default=0, ge=0)
    """MB of resident memory that each process of a reward may take, with all that it has started; one that
    takes more is killed, and its call fails. Address space is not limited: importing torch reserves gigabytes
    of it and fills little. 0: half of the machine's memory, or of the container's."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` for rewards of kind `model`; `auto` takes a GPU if there is one, of
    several one that no other worker has."""
    sandbox: Sandbox = "auto"
    """What programs that a model wrote run in (docs/sandbox.md). `bubblewrap`: no network, no files of this
    machine, no process but their own; `auto` is that, or refuses. `limits` is weaker, programs there may
    forge their rewards: it has to be written by hand."""
    retries: int = Field(default=2, ge=0)
    """Times that a failed group is scored again before its prompt is set aside and replaced by a
    fresh one.
    """
    max_consecutive_failures: int = Field(default=8, ge=1)
    """Failures in a row, with no success between, that end the run: the function is broken, not unlucky."""

    @property
    def entries(self) -> tuple[NamedReward, ...]:
        """The rewards whose weighted sum counts.

        Raises: pydantic.ValidationError if `function` is a name that needs options.
        """
        return self.rewards or ((entry_of(self.function),) if self.function else ())

    def entries_and(self, held_out: str) -> tuple[NamedReward, ...]:
        """All rewards of a run: `entries`, and `evaluation.reward_function` unless it is empty.

        Raises: pydantic.ValidationError if either is a name that needs options.
        """
        return (*self.entries, *([entry_of(held_out)] if held_out else []))
