"""The keys of the configuration that take an import path, a file or a folder, in one list.

Invariant: code that resolves such paths, checks them, or lists built-in names goes by this list, so that a
key of a new kind is added here alone.
"""

from collections.abc import Collection, Mapping

from protocol.agents.renderers import LEFT_OUT, RENDERERS
from protocol.algorithms import LOSSES
from protocol.engines import ENGINES
from protocol.rewards.kinds import names_without_options
from strategies.kinds import STRATEGIES, key_of

BUILT_IN: dict[str, Collection[str]] = {
    "model.factory": (),
    "reward.function": names_without_options(),
    "agent.function": (),
    "agent.renderer": RENDERERS,
    "agent.tool_calls": ("hermes", "none"),
    "evaluation.reward_function": names_without_options(),
    "rollout.engine": ENGINES,
    "trainer.engine": ("fsdp",),
    "trainer.loss": LOSSES,
    **{key_of(field): tuple(table) for field, table in STRATEGIES.items()},
}
"""Each key, and the names of its built-in choices."""

NOT_BUILT_IN: dict[str, Mapping[str, str]] = {"agent.renderer": LEFT_OUT}
"""Names that a user may expect there, and why they do not exist."""

FILES = ("data.path", "model.path")
"""Keys that name a file or a folder; `data.path` may be an import path, too."""

FOLDERS = (
    "run.dir", "run.resume", "weights.directory", "controller.keys", "simulation.workload.trace",
    "cluster.shared_dir",
)  # fmt: skip
"""Keys with a path that is not looked for beside the configuration file."""

CALLED: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "model.factory": ("make(directory, *, seed, progress)", 1, ("seed", "progress")),
    "agent.renderer": ("make(tokenizer)", 1, ()),
    "agent.tool_calls": ("read(text)", 1, ()),
    "rollout.engine": ("make(settings, model_directory)", 2, ()),
    "trainer.loss": ("loss(tokens)", 1, ()),
    "data.path": ("prompts(*, seed)", 0, ("seed",)),
}
"""How functions of these keys are called: in words, how many arguments by position, and which by name."""
