"""The environment of `digits.py` on a server of OpenEnv: `python3 openenv_server.py [PORT [SESSIONS]]`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from digits import Counting
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Answer(Action):
    """What the policy says."""

    text: str


class Shown(Observation):
    """What it is shown."""

    digit: str


class Digits(Environment[Answer, Shown, State]):
    """Three digits, one after the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._counting = Counting()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Shown:
        """The first digit, which the row has."""
        return Shown(digit=self._counting.reset(seed or 0, row)[0])

    def step(self, action: Answer, timeout_s: float | None = None, **_: Any) -> Shown:
        """The next one."""
        digit, reward, is_over, _, _ = self._counting.step(action.text)
        return Shown(digit=digit, reward=reward, done=is_over)

    @property
    def state(self) -> State:
        """Nothing to tell."""
        return State()


if __name__ == "__main__":
    import uvicorn

    port, sessions = [*map(int, sys.argv[1:]), *(8902, 128)[len(sys.argv) - 1 :]]
    app = create_fastapi_app(Digits, Answer, Shown, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
