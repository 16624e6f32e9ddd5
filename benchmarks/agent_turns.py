"""What a turn of an agent takes beyond its engine and its environment: by `policy.chat`, and at the door.

    python -m benchmarks.agent_turns                       64 episodes of 8 turns, 0.5 s between them
    python -m benchmarks.agent_turns --episodes 8 --think-s 0.1

The engine answers at once, so that all the time from a request to its answer is ours. The door is asked by
the `openai` package, and once more (`bare`) by a client that only writes and reads HTTP: what lies between
the two is the package's. All are a real agent worker and its process; the controller is this script.

A line has the time of turns (`p5_ms`, `p50_ms`, `p99_ms`), the CPU of a turn in the agent worker, which is
all ours (`worker_cpu_ms`), and in the process of the agent (`agent_cpu_ms`: client, agent, our pipe), and
the share of a core that each of the two processes had (`worker_core`, `agent_core`). For each way there
is a line in which the same episodes are played one after the other (`at_once: 1`), so that no turn waits for
another: there only other programs, of which `load` tells, can make a turn longer than its CPU, and the
fastest of them (`p5_ms`) are what a turn takes on a processor that is not full. The last line has the CPU
of making a client of the `openai` package: by itself, and with an `http_client` as functions get it that were
written for AReaL.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import openai

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, EpisodeEnded, EpisodeFailed
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import ScriptedLink, serving
from workers.agent.door.http_client import find_client

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


async def measure(link, way, options, *, at_once):
    """The line of a way, of all turns but an episode's first; CPU in milliseconds, for each turn.

    `at_once`: episodes that run side by side.
    """
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    think_s = options.think_s if at_once > 1 else 0.0
    seconds, cpu = [], []
    for first in range(0, options.episodes, at_once):
        for group in range(first, min(options.episodes, first + at_once)):
            link.begin(group, way=way, turns=options.turns, think_s=think_s)
        for _ in range(first, min(options.episodes, first + at_once)):
            ended, _ = await link.hear(EpisodeEnded | EpisodeFailed)
            if isinstance(ended, EpisodeFailed):
                raise SystemExit(ended.reason)
            turns = [value for name, value in ended.metrics if name.startswith("turn")]
            seconds += turns[1:]
            cpu += [value for name, value in ended.metrics if name.startswith("cpu")]
    after, passed_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    worker_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    agent_s, count = max(cpu) - min(cpu), options.episodes * options.turns
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "way": way, "at_once": at_once, "turns": len(seconds), "p5_ms": round(1000 * cuts[4], 1),
        "p50_ms": round(1000 * cuts[49], 1),
        "p99_ms": round(1000 * cuts[98], 1), "worker_cpu_ms": round(1000 * worker_s / count, 2),
        "agent_cpu_ms": round(1000 * agent_s / count, 2), "worker_core": round(worker_s / passed_s, 2),
        "agent_core": round(agent_s / passed_s, 2), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def client_cpu_ms(count=20):
    """Milliseconds of CPU of making a client: by itself, and with an `http_client` of ours."""
    given = {"base_url": "http://127.0.0.1:1/v1", "api_key": "none"}
    ways = {"client_cpu_ms": dict, "client_given_http_cpu_ms": lambda: {"http_client": find_client()()}}
    told = {}
    for name, make in ways.items():
        openai.AsyncOpenAI(**given, **make())  # imports what it needs, and reads our certificates
        began = time.process_time()
        for _ in range(count):
            openai.AsyncOpenAI(**given, **make())
        told[name] = round(1000 * (time.process_time() - began) / count, 2)
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--think-s", type=float, default=0.5)
    parser.add_argument("--ways", default="chat,bare,door")
    options = parser.parse_args()

    async def test(link):
        agent_cpu_ms = {}
        for way in options.ways.split(","):
            beginning = argparse.Namespace(episodes=2, turns=2)  # imports, connections, templates
            await measure(link, way, beginning, at_once=1)
            for at_once in (1, options.episodes):
                line = await measure(link, way, options, at_once=at_once)
                print(json.dumps(line), flush=True)
                agent_cpu_ms[way] = line["agent_cpu_ms"]
        if {"bare", "door"} <= agent_cpu_ms.keys():
            package_ms = agent_cpu_ms["door"] - agent_cpu_ms["bare"]
            print(json.dumps({"package_cpu_ms": round(package_ms, 2)}))

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent.py").write_text(AGENT)
        make_tokenizer().save_pretrained(folder)
        settings = WorkerSettings(
            run_dir=folder, seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(), rollout=RolloutSettings(max_prompt_tokens=4000),
            agent=AgentSettings(
                function=f"{folder}/agent.py:episode", door=True, concurrency=4096, max_turns=64
            ),
        )  # fmt: skip
        asyncio.run(serving(settings, test, AnsweringLink()))
    print(json.dumps(client_cpu_ms()))


if __name__ == "__main__":
    main()
