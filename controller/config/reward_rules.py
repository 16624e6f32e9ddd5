"""Rules between the keys of rewards, and the time that they give the score of a group.

Invariant: pure.
"""

from collections.abc import Iterator

from controller.config.models import Config
from protocol.rewards.kinds import KINDS, CodeReward, JudgeReward, NamedReward, names_without_options

Problem = tuple[tuple[str, ...], str]
WHOLE_GROUPS = (CodeReward, JudgeReward)  # their limits are for all responses of a group, which go together


def reward_problems(config: Config) -> Iterator[Problem]:
    """(fields read, what is wrong) for every rule that does not hold."""
    reward = config.reward
    for key, name in (
        ("reward.function", reward.function),
        ("evaluation.reward_function", config.evaluation.reward_function),
    ):
        if name in KINDS and name not in names_without_options():
            lacking = [n for n, f in KINDS[name].options.model_fields.items() if f.is_required()]
            yield (
                (key,),
                f"is {name}, which needs {' and '.join(f'`{option}`' for option in lacking)}. Write it as an "
                f"entry of reward.rewards: [{{kind: {name}, {lacking[0]}: ...}}].",
            )
    if reward.function and reward.rewards:
        yield (
            ("reward.function", "reward.rewards"),
            f"is {reward.function}, and reward.rewards names {len(reward.rewards)} more. Give one of the two:"
            f" as an entry of reward.rewards it is {{function: {reward.function}}}.",
        )
    held_out = config.evaluation.reward_function
    if held_out and config.agent.is_on and not reward.entries:
        yield (
            ("evaluation.reward_function", config.agent.key, "reward.function"),
            f"is {held_out}, but reward.function is empty, so that episodes earn their rewards themselves "
            "and no reward worker scores any. Leave it out, or set reward.function too.",
        )
    labels = [entry.label for entry in reward.rewards]
    if twice := [label for label in labels if labels.count(label) > 1]:
        yield (
            ("reward.rewards",),
            f"has two rewards with the name {twice[0]}, which is that of a metric. Give each a `name`.",
        )
    if reward.rewards and not any(entry.weight for entry in reward.rewards):
        yield (
            ("reward.rewards",),
            "has the weight 0 everywhere, so that every response gets the reward 0. Give one another weight.",
        )


def longest_group_s(config: Config) -> float:
    """Seconds that the rewards may take for a group, by the time limits of each."""
    entries = config.reward.entries_and(config.evaluation.reward_function)
    return max((_group_s(config, entry) for entry in entries), default=config.reward.timeout_s)


def _group_s(config: Config, reward: NamedReward) -> float:
    """Seconds that one reward may take for a group; its responses may be scored one after the other."""
    limit_s = reward.timeout_s or config.reward.timeout_s
    if isinstance(reward, WHOLE_GROUPS):
        return limit_s
    responses = max(config.rollout.group_size, config.evaluation.samples)
    return limit_s * -(-responses // (KINDS[reward.kind].processes or config.reward.processes))
