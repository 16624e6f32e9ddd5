"""The GPUs of one machine: who gets which."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from controller.config.devices.gpu_shares import GpuShares, gpu_findings, gpu_shares
from controller.config.models import Config


def settings(**tree):
    return Config.model_validate(tree)


EIGHT = tuple("01234567")
MODEL = {"rewards": [{"kind": "model", "path": "m"}]}


def found(tree, visible=EIGHT):
    return gpu_shares(settings(**tree), visible)


def test_ranks_take_the_first_gpus_and_instances_the_others_one_each():
    of = found({"trainer": {"ranks": 2}, "rollout": {"instances": 6}})
    assert of.trainer == ("0", "1")
    assert [of.environment("rollout", f"rollout-{i}") for i in range(6)] == [
        {"CUDA_VISIBLE_DEVICES": gpu} for gpu in "234567"
    ]
    assert of.environment("trainer", "trainer") == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert of.environment("reward", "reward-0") == of.environment("agent", "agent-0") == {}
    assert of.idle == ()


def test_an_instance_of_vllm_has_as_many_as_it_spans():
    of = found(
        {
            "trainer": {"ranks": 2},
            "rollout": {"engine": "vllm", "vllm": {"tensor_parallel_size": 2}, "instances": 2},
        }
    )
    assert of.instances == (("2", "3"), ("4", "5"), ("6", "7"))
    assert of.idle == ("6", "7")


def test_more_instances_than_gpus_share_them_and_a_trainer_that_leaves_none_shares_its():
    of = found({"rollout": {"instances": 5}}, "012")
    assert [of.of("rollout", i) for i in range(5)] == [("1",), ("2",), ("1",), ("2",), ("1",)]
    of = found({"trainer": {"ranks": 2}}, "01")
    assert (of.trainer, of.instances) == (("0", "1"), (("0",), ("1",)))


@pytest.mark.parametrize(
    ("tree", "trainer", "instances"),
    [
        ({"rollout": {"device": "cuda:0"}}, ("1",), ()),
        ({"trainer": {"device": "cuda:1"}}, (), (("0",), ("2",))),
        ({"trainer": {"device": "cpu"}}, (), (("0",), ("1",), ("2",))),
        ({"rollout": {"device": "cpu"}}, ("0",), ()),
        ({"trainer": {"local": False}}, (), (("0",), ("1",), ("2",))),
        ({"trainer": {"algorithm": "sft"}}, ("0",), ()),
        ({"rollout": {"engine": "mine.py:make"}}, ("0",), ()),
        ({"placement": "colocated"}, ("0",), (("0",), ("1",), ("2",))),
        ({"placement": "colocated", "trainer": {"ranks": 3}}, ("0", "1", "2"), (("0",), ("1",), ("2",))),
    ],
)
def test_what_the_user_wrote_down_is_kept_and_nobody_else_gets_it(tree, trainer, instances):
    of = found(tree, "012")
    assert (of.trainer, of.instances) == (trainer, instances)


def test_one_gpu_is_everybodys():
    assert found({}, "0") == found({}, "") == GpuShares()


def test_reward_models_get_an_idle_gpu_or_that_of_the_last_instance():
    assert found({"reward": MODEL}, "01234").reward_models == ("3", "4")
    assert found({"reward": MODEL}, "01234").idle == ("4",)
    assert found({"reward": MODEL}, "012").reward_models == ("2", "1")
    assert found({"reward": MODEL | {"device": "cuda:0"}}, "012").reward_models == ()


@given(
    gpus=some.integers(2, 16), ranks=some.integers(1, 16), instances=some.integers(0, 40),
    width=some.integers(1, 8), is_local=some.booleans(),
)  # fmt: skip
def test_each_gpu_has_one_worker_wherever_there_are_enough(gpus, ranks, instances, width, is_local):
    visible = tuple(f"GPU-{i}" for i in range(gpus))
    rollout = {"engine": "vllm", "instances": instances, "vllm": {"tensor_parallel_size": width}}
    of = found({"trainer": {"ranks": ranks, "local": is_local}, "rollout": rollout}, visible)
    trained = ranks * is_local
    assert of.trainer == visible[:trained]
    assert all(len(slot) == width for slot in of.instances)
    given_out = [gpu for slot in of.instances for gpu in slot]
    assert len(given_out) == len({*given_out})
    if trained + width <= gpus:
        assert not {*given_out} & {*of.trainer}
        assert len(of.instances) == (gpus - trained) // width
    elif width <= gpus:
        assert of.instances
    used = {*of.trainer, *(gpu for i in range(instances) for gpu in of.of("rollout", i))}
    assert {*of.idle} == {*visible} - used


def told(tree, visible):
    return [(level, field, text) for level, field, text in gpu_findings(settings(**tree), visible)]


def test_check_says_who_has_which_gpu_and_which_are_idle():
    assert told({"trainer": {"ranks": 2}, "rollout": {"instances": 6}}, EIGHT) == [
        ("note", "rollout.instances",
         "of 8 GPUs, the trainer has GPUs 0, 1; 6 instances have GPUs 2, 3, 4, 5, 6, 7."),
    ]  # fmt: skip
    ((level, _, text),) = told({}, "0123")
    assert level == "note"
    assert "2 instances have GPUs 1, 2; GPU 3 is idle: raise rollout.instances" in text
    ((_, _, text),) = told({"rollout": {"instances": 3}}, "01")
    assert text == "of 2 GPUs, the trainer has GPU 0; 3 instances share GPU 1."
    ((_, _, text),) = told({"trainer": {"ranks": 2}}, "01")
    assert text == (
        "of 2 GPUs, the trainer has GPUs 0, 1; 2 instances share GPUs 0, 1, as the trainer leaves none."
    )
    assert told({}, "0") == told({}, "") == told({"placement": "colocated"}, "0") == []


def test_check_says_which_gpus_are_used_in_turn_and_which_are_idle():
    shared = {"placement": "colocated", "trainer": {"ranks": 2}, "rollout": {"instances": 3}}
    ((level, _, text),) = told(shared, "0123")
    assert level == "note"
    assert text.startswith(
        "of 4 GPUs, the trainer has GPUs 0, 1; 3 instances share GPUs 0, 1, 2, in turn with the trainer; "
        "GPU 3 is idle: raise"
    )
    ((level, field, text), *_) = told(shared, "0")
    assert (level, field) == ("error", "trainer.ranks")
    assert text.endswith("give at most 1.")


def test_check_refuses_what_the_gpus_do_not_suffice_for():
    ((level, field, text), *_) = told({"trainer": {"ranks": 2, "device": "cuda:1"}}, "01")
    assert (level, field) == ("error", "trainer.device")
    assert text == "is cuda:1, one GPU, and each of 2 ranks (trainer.ranks) needs one. Give cuda."
    ((level, field, text), *_) = told({"trainer": {"ranks": 4}}, "01")
    assert (level, field) == ("error", "trainer.ranks")
    assert text.startswith("is 4, and this machine shows 2 GPUs")
    vllm = {"engine": "vllm", "instances": 3}
    ((level, field, text), _) = told({"rollout": vllm}, "012")
    assert (level, field) == ("error", "rollout.instances")
    assert text.startswith("2 of 3 instances would share a GPU, of which each takes 0.9")
    assert text.endswith("or at most 0.50.")
    assert told({"rollout": vllm | {"vllm": {"gpu_memory_utilization": 0.5}}}, "012")[0][0] == "note"
    ((level, field, _),) = told({"rollout": {"engine": "vllm", "vllm": {"tensor_parallel_size": 4}}}, "01")
    assert (level, field) == ("error", "rollout.vllm.tensor_parallel_size")
    ((level, field, _),) = told({"rollout": {"engine": "vllm"}}, "0")
    assert (level, field) == ("error", "rollout.instances")
