"""What the processes of a long run agree on: its configuration, its rows, the tokens of every response."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from controller.config.models import Config
from controller.core.state.groups import FIRST_EVALUATION_GROUP

ROOT = Path(__file__).resolve().parents[1]
TASK = ROOT / "tests" / "tasks" / "even_digits.py"
SYMBOLS = 12  # of the task's vocabulary
FAULTY = 0.003  # share of scores, pulls and spells that go wrong by the dice
LEASE_S = 3.0
REMOTE = "remote-0"


def config(folder: Path, *, steps: int, spare_groups: int = 0) -> Config:
    """Everything on that can be on together: batches that are trained in parts take no spare groups, and the
    other way round. A step takes some hundredths of a second."""
    quick = {"floor_s": 2e-4, "step_base_s": 1e-4, "token_s": 1e-6, "decode_base_s": 1e-4, "kv_blocks": 64}
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": "run", "steps": steps},
            "model": {"factory": f"{TASK}:make_model"},
            "data": {"path": f"{Path(__file__)}:rows"},
            "reward": {"function": f"{TASK}:reward", "workers": 2, "max_consecutive_failures": 1000},
            "rollout": {
                "instances": 3,
                "group_size": 3,
                "max_response_tokens": 48,
                "max_running": 24,
                "progress_s": 0.05,
                "status_s": 0.05,
            },
            "trainer": {"batch_groups": 4, "checkpoint_steps": 7, "streaming": not spare_groups},
            "staleness": {
                "max_staleness": 2,
                "keep_kv": True,
                "migration": "benefit",
                "stragglers": "retry",
                "spare_responses": 1,
                "spare_groups": spare_groups,
                "filter": "zero_variance",
            },
            "evaluation": {
                "every_steps": 50,
                "samples": 2,
                "data": {"held-out": {"path": f"{Path(__file__)}:held_out", "max_prompts": 8}},
            },
            "controller": {"respawns": 10_000, "lease_s": LEASE_S, "beat_s": 0.5, "attach_timeout_s": 60.0},
            "simulation": {
                "workload": {"prompt_tokens": 4},
                "engine": quick,
                "train_base_s": 0.004,
                "train_token_s": 1e-5,
                "publish_s": 0.002,
                "pull_s": 0.004,
                "score_s": 0.003,
                "attach_s": 0.05,
                "report_s": 0.05,
            },
            "logging": {"console": "quiet"},
        }
    )


def rows(*, seed: int) -> Iterator[dict[str, object]]:
    """Row n has the prompt of group n."""
    for group in count():
        yield {"prompt": str(group), "prompt_ids": prompt_of(group)}


def held_out(*, seed: int) -> Iterator[dict[str, object]]:
    """All alike."""
    while True:
        yield {"prompt": "held out", "prompt_ids": prompt_of(FIRST_EVALUATION_GROUP)}


def prompt_of(group: int) -> list[int]:
    """The prompt of a group."""
    if group >= FIRST_EVALUATION_GROUP:
        return [SYMBOLS - 1] * 4
    return [group % SYMBOLS, group // 7 % SYMBOLS, group // 91 % SYMBOLS, group // 1183 % SYMBOLS]


def tokens_of(group: int, member: int, first: int, amount: int) -> list[int]:
    """So many tokens of a response, from the one at `first` on."""
    return [(group * 5 + member * 3 + place * place) % SYMBOLS for place in range(first, first + amount)]
