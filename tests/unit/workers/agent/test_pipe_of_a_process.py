"""How a process of episodes reads what its worker says."""

import asyncio
import json
import os

from workers.agent import pipe
from workers.agent.process import EpisodeServer
from workers.agent.saved_state import pack
from workers.children.packets import packet


class OwnEnd:
    """The pipe of a process, whose other end is the test's."""

    def __init__(self):
        self.requests, self.worker = os.pipe()
        os.set_blocking(self.requests, False)  # a read that would wait for ever is an error instead
        self.said = asyncio.Queue()

    def write(self, *parts):
        self.said.put_nowait(parts[:2])


def test_an_episode_that_reads_the_pipe_empty_first_does_not_stop_the_loop():
    async def play(policy, row):
        policy.notes.count(0)
        return 1.0

    async def test():
        end, wrong = OwnEnd(), []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(context))
        server = EpisodeServer(end, play)
        serving = loop.create_task(server.run())
        await asyncio.sleep(0)
        os.write(end.worker, packet(pipe.BEGIN, 1, 7, b"{}", "http://here/v1", "sk-1"))
        await asyncio.sleep(0)  # the loop hears of it only with its next look
        server._read_all()
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.ENDED, 1)
        os.write(end.worker, packet(pipe.BEGIN, 2, 7, b"{}", "http://here/v1", "sk-1"))
        loop.call_soon(server._read_all)  # before the reader, in the same round
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.ENDED, 2)
        assert wrong == []
        serving.cancel()
        loop.remove_reader(end.requests)
        os.close(end.requests)
        os.close(end.worker)

    asyncio.run(test())


def test_a_turn_at_the_door_that_is_told_of_behind_an_answer_counts_once():
    heard = []

    async def play(policy, row):
        await policy.generate([5])
        heard.append(policy.notes.turns)
        policy.reward(0.5)
        assert policy.notes.rewards == {0: 0.5}, "of the answer that it has just had"
        await policy.untrained.generate([5])
        heard.append(policy.notes.turns)
        return 1.0

    async def test():
        end = OwnEnd()
        loop = asyncio.get_running_loop()
        server = EpisodeServer(end, play)
        serving = loop.create_task(server.run())
        await asyncio.sleep(0)
        os.write(end.worker, packet(pipe.BEGIN, 1, 7, b"{}", "http://here/v1", "sk-1"))
        answer = json.dumps({"sampled": [6], "ending": "stop", "place": 0}).encode()
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.ASK, 1)
        counted = packet(pipe.COUNTED, 1, 1, "", "chatcmpl-1")
        os.write(end.worker, packet(pipe.ANSWER, 1, 1, answer) + counted)  # heard in one go
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.ASK, 1)
        late = json.dumps({"sampled": [6], "ending": "stop", "place": -1}).encode()
        os.write(end.worker, packet(pipe.ANSWER, 1, 2, late))
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.ENDED, 1)
        assert heard == [2, 2]
        serving.cancel()
        loop.remove_reader(end.requests)
        os.close(end.requests)
        os.close(end.worker)

    asyncio.run(test())


def test_an_episode_whose_notes_cannot_be_read_fails_in_a_word():
    async def test():
        end = OwnEnd()
        loop = asyncio.get_running_loop()
        serving = loop.create_task(EpisodeServer(end, None).run())
        await asyncio.sleep(0)
        state = pack({"of a release": "to come"}, b"mine")
        os.write(end.worker, packet(pipe.BEGIN, 1, 7, b"{}", "http://here/v1", "sk-1", state))
        assert await asyncio.wait_for(end.said.get(), 300) == (pipe.FAILED, 1)
        serving.cancel()
        loop.remove_reader(end.requests)
        os.close(end.requests)
        os.close(end.worker)

    asyncio.run(test())
