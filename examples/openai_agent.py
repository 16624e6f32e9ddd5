"""The guessing game again, by the unchanged `openai` package: what a program of yours looks like as an agent.

`episode` is not async, so it runs in a thread. As a program, by `agent.command: [python3, openai_agent.py]`,
it runs once per episode, reads its row from standard input and prints its reward.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from guess_task import GUESSES, NUMBERS, judge
from openai import OpenAI


def episode(policy: Any, row: Mapping[str, Any]) -> float:
    """One game: 1 for the secret."""
    with OpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
        return play(client, row["secret"])


def play(client: OpenAI, secret: int) -> float:
    messages: list[Any] = [{"role": "user", "content": "?"}]
    low, high = 0, NUMBERS
    for _ in range(GUESSES):
        answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=1)
        said = answer.choices[0].message
        text = said.content or ""
        guess = int(text) if text.isdecimal() else NUMBERS  # which is none of those that may be guessed
        told, low, high = judge(guess, secret, low, high)
        if told == "=":
            return 1.0
        messages += [said.model_dump(), {"role": "user", "content": told}]
    return 0.0


if __name__ == "__main__":
    with OpenAI() as client:  # by OPENAI_BASE_URL and OPENAI_API_KEY
        print(json.dumps({"reward": play(client, json.load(sys.stdin)["secret"])}))
