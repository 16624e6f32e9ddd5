"""Rules between keys of the section `agent`, and the keys of other sections that episodes depend on.

Invariant: pure; a rule names the fields that it reads, their values, and values that would be accepted.
"""

from collections.abc import Iterator

from controller.config.models import Config
from protocol.agents.renderers import LIBRARY
from protocol.algorithms import GROUP_BASELINES

Problem = tuple[tuple[str, ...], str]


def agent_problems(config: Config) -> Iterator[Problem]:
    """(fields read, what is wrong) for every rule that does not hold."""
    agent, staleness = config.agent, config.staleness
    if agent.function and agent.command:
        yield (
            ("agent.command", "agent.function"),
            f"is set, and so is agent.function, {agent.function!r}; an episode is the one or the other. "
            "Leave one of them out.",
        )
    if agent.kind != "auto" and not agent.function:
        yield (
            ("agent.kind", "agent.function"),
            f"is `{agent.kind}`, which says what agent.function names, and that is empty; set it, or leave "
            "the kind out.",
        )
    if not agent.is_on:
        return
    if config.trainer.is_supervised:
        yield (
            (agent.key, "trainer.algorithm"),
            "is set, but sft trains on responses that the data gives, so there is nothing for an agent to "
            "do; leave `agent` out, or choose another algorithm.",
        )
    if staleness.stragglers != "wait":
        yield (
            ("staleness.stragglers", agent.key),
            f"is `{staleness.stragglers}`, which cuts responses or begins groups anew; episodes of an agent "
            "end by their own limits (agent.turn_timeout_s, agent.episode_timeout_s). Leave it `wait`.",
        )
    yield from _episode_problems(config)


def _episode_problems(config: Config) -> Iterator[Problem]:
    agent, rollout = config.agent, config.rollout
    at_once = agent.workers * agent.concurrency
    needed = rollout.group_size + config.staleness.spare_responses
    if agent.workers and at_once < needed:
        yield (
            ("agent.concurrency", "agent.workers", "rollout.group_size"),
            f"times agent.workers is {at_once} episodes at once, and a group has {needed}, which all ask "
            f"before it starts; give at least {-(-needed // agent.workers)}.",
        )
    if agent.max_turn_tokens > rollout.max_response_tokens:
        yield (
            ("agent.max_turn_tokens", "rollout.max_response_tokens"),
            f"is {agent.max_turn_tokens}, more than rollout.max_response_tokens, "
            f"{rollout.max_response_tokens}; lower the one or raise the other.",
        )
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    if agent.max_tokens > longest:
        yield (
            ("agent.max_tokens", "rollout.max_prompt_tokens", "rollout.max_response_tokens"),
            f"is {agent.max_tokens}, more than the engine's context, {longest} (rollout.max_prompt_tokens "
            "and rollout.max_response_tokens); lower the one or raise the others.",
        )
    if 0 < agent.max_sampled_tokens < agent.max_turn_tokens:
        yield (
            ("agent.max_sampled_tokens", "agent.max_turn_tokens"),
            f"is {agent.max_sampled_tokens} for a whole episode, and agent.max_turn_tokens lets one answer "
            f"have {agent.max_turn_tokens}; raise the one, lower the other, or set 0 for no such limit.",
        )
    yield from _history_problems(config)
    yield from _template_problems(config)
    if agent.turn_advantages != "returns" and not agent.turn_rewards:
        yield (
            ("agent.turn_advantages", "agent.turn_rewards"),
            f"is {agent.turn_advantages!r}, and agent.turn_rewards is false, so that no turn has an "
            "advantage of its own; set it true, or leave turn_advantages out.",
        )
    if agent.turn_rewards and config.trainer.baseline not in GROUP_BASELINES:
        yield (
            ("agent.turn_rewards", "trainer.baseline"),
            f"is true, which compares turns within a group, and trainer.baseline is "
            f"`{config.trainer.baseline}`; choose one of {', '.join(GROUP_BASELINES)}, or leave "
            "turn_rewards out.",
        )


def _history_problems(config: Config) -> Iterator[Problem]:
    agent = config.agent
    if agent.history == "template" and agent.max_trajectories == 1:
        yield (
            ("agent.history", "agent.max_trajectories"),
            "is `template`, by which a turn may begin a trajectory of its own, and agent.max_trajectories is "
            "1; raise it, or set `keep`.",
        )
    if agent.history == "template" and agent.renderer == "plain":
        yield (
            ("agent.history", "agent.renderer"),
            "is `template`, and agent.renderer `plain` has no template that could write the past otherwise; "
            "leave it `keep`.",
        )


def _template_problems(config: Config) -> Iterator[Problem]:
    """Refuses arguments of a chat template if the renderer uses no chat template."""
    renderer = config.agent.renderer
    if renderer != "plain" and renderer not in LIBRARY:
        return
    held_out = [(f"evaluation.data.{name}", one) for name, one in config.evaluation.data.items()]
    for place, rows in [*config.data.each, *held_out]:
        if rows.chat_template_kwargs:
            yield (
                (f"{place}.chat_template_kwargs", "agent.renderer"),
                f"is set, and agent.renderer is `{renderer}`, which does not use the chat template; leave "
                "the renderer `template`, or take the arguments out.",
            )
