"""What a turn of an agent takes beyond its engine and its environment: by `policy.chat`, and at the door.

    python -m benchmarks.agent_turns                       64 episodes of 8 turns, 0.5 s between them
    python -m benchmarks.agent_turns --episodes 8 --think-s 0.1

The engine answers at once, so that all the time from a request to its answer is ours. The door is asked by
the `openai` package, and once more (`bare`) by a client that only writes and reads HTTP: what lies between
the two is the package's, whose CPU stands in `agent_cpu_ms`. All are a real agent worker and its process;
the controller is this script.
"""

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
from pathlib import Path

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, EpisodeEnded, EpisodeFailed
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import ScriptedLink, serving

AGENT = """
import asyncio, json, random, time
from urllib.parse import urlsplit
from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(base_url="http://here", api_key="none")  # making one takes longer than a turn

class Bare:  # one connection, kept open
    async def ask(self, policy, messages):
        if not hasattr(self, "reader"):
            place = urlsplit(policy.base_url)
            self.reader, self.writer = await asyncio.open_connection(place.hostname, place.port)
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: here\\r\\n"
        head += f"Authorization: Bearer {policy.api_key}\\r\\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
        told = await self.reader.readuntil(b"\\r\\n\\r\\n")
        size = int(told.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
        return json.loads(await self.reader.readexactly(size))["choices"][0]["message"]

async def episode(policy, row):
    bare, cpu_s = Bare(), time.process_time()
    messages, source = [{"role": "user", "content": "2+3?"}], random.Random(row["group"])
    if row["way"] == "door":
        client = CLIENT.with_options(base_url=policy.base_url, api_key=policy.api_key)
    for turn in range(row["turns"]):
        await asyncio.sleep(source.uniform(0, 2 * row["think_s"]))
        begin = time.perf_counter()
        if row["way"] == "door":
            answer = await client.chat.completions.create(model="policy", messages=messages)
            message = answer.choices[0].message.model_dump()
        elif row["way"] == "bare":
            message = await bare.ask(policy, messages)
        else:
            message = await policy.chat(messages)
        policy.metric(f"turn {turn}", time.perf_counter() - begin)
        messages += [message, messages[0]]
    policy.metric("cpu", time.process_time())
    policy.metric("cpu before", cpu_s)
    return 1.0
"""


class AnsweringLink(ScriptedLink):
    """Answers each request as soon as it is made."""

    def __init__(self):
        super().__init__()
        self.tokenizer = make_tokenizer()

    def send(self, message, *frames):
        if isinstance(message, Ask):
            self.answer(message, "5", self.tokenizer)
        else:
            super().send(message, *frames)


async def measure(link, way, options):
    """(seconds of each turn but an episode's first; CPU seconds of worker, and of the agents, per turn)"""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for group in range(options.episodes):
        link.begin(group, way=way, turns=options.turns, think_s=options.think_s)
    seconds, cpu = [], []
    for _ in range(options.episodes):
        ended, _ = await link.hear(EpisodeEnded | EpisodeFailed)
        if isinstance(ended, EpisodeFailed):
            raise SystemExit(ended.reason)
        seconds += [value for name, value in ended.metrics if name.startswith("turn") and name != "turn 0"]
        cpu += [value for name, value in ended.metrics if name.startswith("cpu")]
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = options.episodes * options.turns
    return seconds, spent / count, (max(cpu) - min(cpu)) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--think-s", type=float, default=0.5)
    options = parser.parse_args()

    async def test(link):
        for way in ("chat", "bare", "door"):
            await measure(link, way, argparse.Namespace(**{**vars(options), "episodes": 1, "turns": 2}))
            seconds, spent, of_agents = await measure(link, way, options)
            cuts = statistics.quantiles(seconds, n=100)
            print(json.dumps({
                "way": way, "turns": len(seconds), "p50_ms": round(1000 * cuts[49], 1),
                "p99_ms": round(1000 * cuts[98], 1), "worker_cpu_ms": round(1000 * spent, 2),
                "agent_cpu_ms": round(1000 * of_agents, 2),
            }), flush=True)  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.py").write_text(AGENT)
        make_tokenizer().save_pretrained(folder)
        settings = WorkerSettings(
            run_dir=folder, seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(), rollout=RolloutSettings(max_prompt_tokens=4000),
            agent=AgentSettings(function=f"{folder}/agent.py:episode", door=True, concurrency=4096),
        )  # fmt: skip
        asyncio.run(serving(settings, test, AnsweringLink()))


if __name__ == "__main__":
    main()
