"""A real run whose episodes fork: what each conversation was sampled is trained once, and replays."""

import json
from pathlib import Path

from test_whole_runs import config

from controller import Controller
from controller.core.commands import Send
from controller.durability.recording import Recording
from controller.durability.replay import replay, turns
from protocol.messages import Train

AGENT = Path(__file__).parents[1] / "tasks" / "forking_turns.py"
STEPS, TRAINED = 3, 4  # trajectories of an episode: the first, two helpers, one edited history


async def test_conversations_of_an_episode_are_trained_once_each_and_replay(tmp_path):
    settings = config(
        tmp_path,
        run={"steps": STEPS},
        agent={"function": f"{AGENT}:episode"},
        reward={"function": ""},
        rollout={"max_prompt_tokens": 8, "max_response_tokens": 24},
    )
    async with Controller(settings) as controller:
        lines = [step.metrics async for step in controller.train()]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["is_success"], summary["reason"]
    assert summary["staleness/violations"] == 0
    spent = sum(summary[f"tokens/{end}"] for end in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
    assert summary["tokens/filtered"] > 0, "titles are sampled, and not trained"
    assert summary["counts"].get("episodes/failed_agent", 0) == 0
    assert [line["trajectories/mean"] for line in lines] == [TRAINED] * STEPS
    assert [line["turns/mean"] for line in lines] == [TRAINED + 1] * STEPS
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
        items = [
            item
            for _, commands in turns(recording, recording.make_core())
            for command in commands
            if isinstance(command, Send) and isinstance(command.message, Train)
            for item in command.message.items
        ]
    names = [(item.group, item.member) for item in items]
    assert len(set(names)) == len(names) == STEPS * 4 * 4 * TRAINED
    for item in items:
        siblings = [other for other in items if (other.group, other.episode) == (item.group, item.episode)]
        assert len({other.reward for other in siblings}) == 1
        assert len(siblings) == TRAINED
