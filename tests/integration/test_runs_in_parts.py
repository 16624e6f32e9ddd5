"""Real runs whose batches are trained in parts: the same losses, the same books, also if the trainer dies."""

import signal

import pytest
from local_workers import local_workers
from test_killed_runs import GROUPS, check_whole
from test_whole_runs import config

from controller import Controller
from controller.core.commands import Send
from controller.durability.recording import Recording
from controller.durability.replay import turns
from protocol.messages import TrainAhead

STEPS = 5


def settings(run_dir, *, max_staleness=0, **trainer):
    """One group is generated after the other, so that parts come for certain."""
    return config(
        run_dir,
        run={"steps": STEPS},
        trainer={"checkpoint_steps": 2, "batch_groups": GROUPS, "lr": 1e-3, **trainer},
        rollout={"instances": 1, "max_running": 4},
        staleness={"max_staleness": max_staleness},
    )


def sent_ahead(run) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    with Recording(run) as recording:
        for _, commands in turns(recording, recording.make_core()):
            for command in commands:
                if isinstance(command, Send) and isinstance(command.message, TrainAhead):
                    found = groups.setdefault(command.message.train_version, set())
                    found |= {item.group for item in command.message.items}
    return groups


@pytest.mark.costly
async def test_a_synchronous_run_in_parts_has_the_losses_of_whole_batches(tmp_path):
    losses = {}
    for streaming in (False, True):
        async with Controller(settings(tmp_path / str(streaming), streaming=streaming)) as controller:
            lines = [step.metrics async for step in controller.train()]
        losses[streaming] = [line["loss"] for line in lines]
        check_whole(tmp_path / str(streaming) / "run", steps=STEPS)
        assert all(("time_s/ahead" in line) == streaming for line in lines)
    assert losses[True] == pytest.approx(losses[False], abs=1e-6, rel=0)
    assert sent_ahead(tmp_path / "False" / "run") == {}
    ahead = sent_ahead(tmp_path / "True" / "run")
    assert list(ahead) == list(range(STEPS))
    assert all(1 <= len(groups) < GROUPS for groups in ahead.values())


async def test_a_rank_that_is_killed_is_fed_what_it_had_and_every_promise_is_kept(tmp_path):
    run = settings(tmp_path, max_staleness=1, streaming=True, ranks=2)
    async with Controller(run) as controller:
        async for step in controller.train():
            assert step.metrics["staleness/max"] <= 1
            if step.policy_version == 3:
                trainers = local_workers("trainer")
                trainers[-1].send_signal(signal.SIGKILL)
    assert controller.summary["counts"]["workers/respawned"] == 1
    check_whole(tmp_path / "run", steps=STEPS)
    assert sent_ahead(tmp_path / "run")
