"""The section `agent`: episodes of several turns, with tools and environments.

Invariant: at its defaults there is no agent, and a run is what it is without this section.
"""

from typing import Literal

from pydantic import Field

from protocol.section import Section


class AgentSettings(Section):
    """Episodes of several turns.

    An agent's function asks the policy again and again, with what its tools and its environment say in
    between. Without `function`, a response is one answer to one prompt.
    """

    function: str = ""
    """Import path `module:function` or `file.py:function` of the agent, the id of a taskset of verifiers, or
    the address of a server of OpenEnv, such as `http://localhost:8000`. Empty: no agent."""
    command: tuple[str, ...] = Field(default=(), strict=False)
    """Program and arguments of an agent, in the place of `function`: run once per episode, with the row as
    JSON on standard input and `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL` and `EPISODE_SEED` set. A
    last line of output `{"reward": x}` is its reward; without one, `reward.function` scores what was said."""
    kind: Literal["auto", "function", "tools", "gym", "verifiers", "openenv"] = "auto"
    """What `function` names: a coroutine function of `(policy, row)`, or one for AReaL or Miles, a class
    whose methods are tools (docs/agents.md), a Gymnasium environment of texts, a taskset of verifiers, or an
    environment of OpenEnv (docs/environments.md). `auto`: by what it has."""
    door: bool = False
    """Let any client of OpenAI's API ask the policy, by chat completions or responses: each episode has a
    `policy.base_url` on its own machine, and a `policy.api_key` that names it. Needs the extra `web`.
    Functions for AReaL and Miles have it without this key."""
    other_sampling: Literal["refuse", "ignore"] = "refuse"
    """What becomes of a request at the door for a temperature, or the like, that is not the run's own, or for
    a constraint such as `response_format` or `tool_choice: required`: `refuse` it, or `ignore` what it asks
    for, with one warning for each field. Training has to know the distribution."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Given by name to the function at each call, or to the class when an object of it is made. Of a taskset,
    fields of its configuration; of a server of OpenEnv, how texts become actions (docs/environments.md)."""
    renderer: str = "template"
    """How messages become tokens: by the tokenizer's chat template, `plain`, the texts one behind the other,
    for a model without one, by one of the library `renderers`, such as `qwen3` (extra `renderers`), or by an
    import path of a renderer of your own (docs/agents.md)."""
    tool_calls: str = "hermes"
    """How the policy writes tool calls: `hermes`, which Qwen and others use, is `<tool_call>{"name": ...,
    "arguments": {...}}</tool_call>`; `none` reads none; or an import path of a function from a text to (the
    rest of it, calls). A renderer of the library, or of your own, reads them by itself."""
    history: Literal["keep", "template", "refuse"] = "keep"
    """If the chat template writes earlier turns otherwise once others follow, as those do that strip
    thinking: `keep` leaves them as they were sampled; `template` writes them as the template does, so that
    such a turn begins a trajectory of its own and its past is computed again; `refuse` ends the run at its
    start."""
    workers: int = Field(default=1, ge=0)
    """Local agent workers."""
    processes: int = Field(default=1, ge=1)
    """Processes in which one worker runs episodes side by side."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes that one worker has at once."""
    isolation: Literal["shared", "process"] = "shared"
    """`shared`: episodes run side by side in `processes` processes. `process`: each runs in one of its own,
    for code that uses global state or blocks; with `door`, `OPENAI_BASE_URL` and `OPENAI_API_KEY` are set in
    it."""
    memory_mb: int = Field(default=0, ge=0)
    """MB of resident memory that each process of episodes may take, with all that it has started; one that
    takes more is killed, and its episodes are begun again. 0: half of the machine's memory, or of the
    container's."""
    max_turns: int = Field(default=16, ge=1, le=4096)
    """Answers of the policy in one episode."""
    max_turn_tokens: int = Field(default=0, ge=0)
    """Tokens of one answer; a longer one is cut there. 0: `rollout.max_response_tokens`."""
    max_tokens: int = Field(default=0, ge=0)
    """Tokens of one trajectory, given and sampled: the context that the engine has. 0: the sum of
    `rollout.max_prompt_tokens` and `rollout.max_response_tokens`, which is also the most."""
    max_sampled_tokens: int = Field(default=0, ge=0)
    """Tokens that the policy may say in one episode, in all its conversations, those that are not trained
    included. The last answer is cut there; of several that are asked for at once, each counts with all that
    it may have until it is there. 0: no such limit."""
    max_trajectories: int = Field(default=64, ge=1, le=4096)
    """Conversations of one episode. A request that goes on from no answer, since its history was edited or it
    is a sub-agent's, begins another one, which is trained, too. 1: such a request is refused in words."""
    turn_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that an environment may take between two turns. Time in which the policy is awaited does not
    count."""
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that the environment of one episode may take in all, since it was begun last."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds from the beginning of an episode until it asks the policy for the first time."""
    on_limit: Literal["score", "zero", "mask"] = "score"
    """What an episode is worth that a limit of turns or tokens has ended. `score`: what its function returns,
    or 0; `zero`: 0; `mask`: it is neither trained nor in the mean of its group."""
    on_timeout: Literal["score", "retry"] = "score"
    """What becomes of an episode whose environment is silent for too long. `score`: it ends with reward 0, so
    that no policy escapes by hanging its sandbox; `retry`: it begins anew."""
    retries: int = Field(default=2, ge=0)
    """Times that an episode begins anew after its environment or its function failed, before its prompt is
    set aside and replaced by a fresh one. The other episodes of the prompt stay."""
    max_consecutive_failures: int = Field(default=8, ge=1)
    """So many failed episodes in a row, with none between that ended, end the run with the first failure and
    its row."""
    replay: Literal["auto", "never"] = "auto"
    """What becomes of an episode whose worker or controller dies. `auto`: its function runs again, and the
    answers that it had are given to it again, so no token is sampled twice; if it asks something else than
    before, it begins anew. `never`: it begins anew, for environments whose actions must not be repeated."""
    max_state_mb: int = Field(default=4, ge=1, le=16)
    """MB that an episode may save with one turn: what the `save` of its environment returns, or what its
    function gives to `policy.save`, and its conversations. More is a failure of the agent."""
    prepare_groups: int | None = Field(default=None, ge=1)
    """Prompts whose episodes are begun before there is a place for them in a batch: `reset` and the first
    request cost no staleness. Null: `trainer.batch_groups`."""
    turn_rewards: bool = False
    """Give each turn an advantage of its own: its return, the rewards from this turn on, compared over the
    same turns of the group. Off: all tokens of an episode have the episode's advantage."""
    turn_advantages: str = "returns"
    """What makes the advantages of turns, with `turn_rewards`: `returns`, or an import path of a function
    like those of strategies/outcomes.py, such as one that compares turns that began in the same state."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Factor by which a reward counts less for each turn before it, with `turn_rewards`."""

    @property
    def has_door(self) -> bool:
        """Whether clients may ask the policy over HTTP."""
        return self.door or bool(self.command)

    @property
    def door_key(self) -> str:
        """The key that asks for a door; a function may do so by its shape."""
        return "agent.door" if self.door else self.key

    @property
    def import_path(self) -> str:
        """`function` if it is one; else an id or an address that only its kind understands: "" then."""
        is_other = "://" in self.function or (self.kind == "verifiers" and ":" not in self.function)
        return "" if is_other else self.function

    @property
    def is_on(self) -> bool:
        """Whether responses are made by an agent."""
        return bool(self.function or self.command)

    @property
    def name(self) -> str:
        """What the agent is, for people: the import path, or the program."""
        return self.function or " ".join(self.command)

    @property
    def key(self) -> str:
        """The key that says it."""
        return "agent.command" if self.command else "agent.function"
