"""Supervised training in the core: batches out of the data, and no word to or of a rollout worker."""

import json

import numpy as np
import pytest

from controller.check.problems import check
from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Finish, ReportStep, Send, Spawn
from controller.core.core import Core
from controller.core.events import PromptsRead, Received, Started
from controller.durability.fingerprint import fingerprint
from controller.durability.store import Store
from protocol import messages
from protocol.errors import RemoteError
from protocol.messages import Attach, Close, ExamplesEncoded, Train, TrainStepFinished
from protocol.wire.codec import Packet, decode, encode

CONFIG = Config.model_validate(
    {
        "run": {"steps": 3},
        "rollout": {"instances": 2},
        "trainer": {"algorithm": "sft", "batch_groups": 2, "checkpoint_steps": 0},
    }
)
LENGTHS = ((0, 3, 4), (1, 2, 5), (2, 1, 1), (3, 1, 2), (4, 1, 3))  # group, prompt tokens, response tokens


class Run:
    """A core with a trainer and a reward worker, and everything that happened to it."""

    def __init__(self) -> None:
        self.core, self.history, self.said = Core(CONFIG, load_strategies(CONFIG)), [], []
        self.do(Started())
        self.spawned = [command.name for command in self.said if isinstance(command, Spawn)]
        for name in ("trainer", "reward"):
            self.hear(name, Attach(name, name, 1, "here"))
            self.hear(name, messages.Ready(0, 0, 0))

    def do(self, event) -> list:
        self.history.append(event)
        self.said = self.core.step(0.01 * len(self.history), event)
        self.core.check()
        return self.said

    def hear(self, peer, message) -> list:
        return self.do(Received(peer, message))

    def read(self, encoded, refused=(), *, is_end=False) -> None:
        count = len(encoded) + len(refused)
        self.do(PromptsRead(self.core.scoring.read_until, count, is_end))
        self.hear("reward", ExamplesEncoded(encoded, refused))

    def batch(self) -> Train:
        (train,) = [c.message for c in self.said if isinstance(c, Send) and isinstance(c.message, Train)]
        return train

    def finish(self, version) -> dict:
        self.hear("trainer", TrainStepFinished(version, 0.1, (("loss", 0.5), ("perplexity", 1.6))))
        return next(command.metrics for command in self.said if isinstance(command, ReportStep))


def test_no_rollout_worker_is_started_and_one_that_comes_is_sent_away_in_words():
    run = Run()
    assert run.spawned == ["trainer", "reward-0"]
    (close,) = run.hear("late", Attach("rollout", "late", 1, "here"))
    assert isinstance(close.message, Close)
    assert close.message.is_fault
    assert "trainer.algorithm: sft" in close.message.reason


def test_batches_follow_the_order_of_the_data_with_its_responses_and_advantage_one():
    run = Run()
    run.read(LENGTHS)
    train = run.batch()
    assert [(i.group, i.prompt_tokens, i.response_tokens, i.outcome) for i in train.items] == [
        (0, 3, 4, 1.0),
        (1, 2, 5, 1.0),
    ]
    assert train.is_published  # so that the trainer publishes nothing
    line = run.finish(1)
    assert line["loss"] == 0.5
    assert line["perplexity"] == 1.6
    assert line["tokens/trained"] == 9
    assert not [key for key in line if key.startswith(("reward/", "staleness/", "idle/rollout"))]
    assert [item.group for item in run.batch().items] == [2, 3]


def test_a_refused_row_is_left_out_and_what_is_too_few_for_a_batch_ends_the_run():
    run = Run()
    run.read((LENGTHS[0], LENGTHS[2], LENGTHS[3]), ((1, "too long"),), is_end=True)
    assert [item.group for item in run.batch().items] == [0, 2]
    run.finish(1)
    assert "1 group was left over" in (run.core.state.ending or "")
    run.hear("trainer", messages.CheckpointSaved(1, "checkpoint"))
    (finish,) = [command for command in run.said if isinstance(command, Finish)]
    assert finish.is_success
    assert "reward/first_steps" not in run.core.summary()
    assert run.core.summary()["verdict"].startswith("Bound by the data")


def test_a_lost_trainer_is_fed_the_same_examples_again():
    run = Run()
    run.read(LENGTHS)
    first = run.batch()
    run.finish(1)
    run.hear("trainer", messages.WorkerFailed("out of memory"))
    run.hear("again", Attach("trainer", "trainer", 2, "here"))
    run.hear("again", messages.Ready(0, 0, 0))
    assert run.batch() == first


def test_the_same_events_give_the_same_commands():
    run = Run()
    run.read(LENGTHS)
    run.finish(1)
    again = Core(CONFIG, load_strategies(CONFIG))
    for number, event in enumerate(run.history, 1):
        said = again.step(0.01 * number, event)
    assert fingerprint(said) == fingerprint(run.said)


def test_the_store_gives_the_trainer_prompt_and_response_with_logprobs_of_certainty():
    store = Store(":memory:")
    with store.transaction():
        store.put_row(0, b"{}")
        frame = np.arange(7, dtype="<i4").tobytes()
        store.put_frames(ExamplesEncoded(((0, 3, 4),), ()), (frame,))
    run = Run()
    run.read(LENGTHS)
    item = run.batch().items[0]
    prompt, tokens, logprobs = store.fetch(Train(0, (item,)))
    assert np.frombuffer(prompt, "<i4").tolist() == [0, 1, 2]
    assert np.frombuffer(tokens, "<i4").tolist() == [3, 4, 5, 6]
    assert np.frombuffer(logprobs, "<f4").tolist() == [0.0] * 4
    store.close()


def test_a_frame_that_contradicts_its_counts_is_refused_at_the_door():
    message = ExamplesEncoded(((0, 1, 1),), ())
    assert decode(encode(Packet(1, 0, message, (bytes(8),)))).message == message
    with pytest.raises(RemoteError, match="counts say"):
        decode(encode(Packet(1, 0, message, (bytes(4),))))


def test_check_asks_for_no_reward_function_and_for_the_response_column(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "answer": "b"}\n')
    tree = {"trainer": {"algorithm": "sft"}, "rollout": {"group_size": 1}}
    found = check(Config.model_validate({**tree, "data": {"path": str(data)}}))
    errors = {finding.field for finding in found if finding.level == "error"}
    assert errors == {"data.columns.response", "model.path"}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    data.write_text(json.dumps({"messages": talk}) + "\n")
    found = check(Config.model_validate({**tree, "data": {"path": str(data)}}))
    assert {finding.field for finding in found if finding.level == "error"} == {"model.path"}
