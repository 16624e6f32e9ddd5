"""Mistakes that `check` let pass, or answered beside the point, until a stranger made them."""

import json
from pathlib import Path

import pytest
from test_forty_mistakes import Mistake

from controller.check import memory, problems
from controller.cli.main import main
from protocol.wire.descriptors import DescriptorLimit
from tests.support.small_project import make_project

pytestmark = pytest.mark.usefixtures("answered_here")


def _without(*patterns: str):
    def remove(folder: Path) -> None:
        for pattern in patterns:
            for file in (folder / "model").glob(pattern):
                file.unlink()

    return remove


def _in_shards(folder: Path) -> None:
    model = folder / "model"
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    names = {"w": "model-1.safetensors", "v": "model-2.safetensors", "u": "model-3.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


MISTAKES = [
    Mistake(
        "compressed prompts", ("rows.jsonl", "is compressed by xz, which is not read", "Unpack it"),
        prepare=lambda folder: (folder / "rows.jsonl").write_bytes(b"\xfd7zXZ\0"),
    ),
    Mistake(
        "a download that lacks files of weights",
        ("model.path", "lacks 2 of the files", "first model-2.safetensors", "whole model"),
        prepare=_in_shards,
    ),
    Mistake(
        "a download without weights", ("model.path", "no weights", "whole model"),
        prepare=_without("*.safetensors"),
    ),
    Mistake(
        "a model without a tokenizer", ("model.path", "no tokenizer", "whole model"),
        prepare=_without("tokenizer*"),
    ),
    Mistake(
        "a rollout device that is not there", ("rollout.device", "`cuda:7`", "has no GPU", "attach"),
        ("rollout.device=cuda:7",),
    ),
    Mistake(
        "a trainer device that is not there", ("trainer.device", "has no GPU"), ("trainer.device=cuda",)
    ),
    Mistake(
        "an offload from no GPU", ("trainer.cpu_offload", "no GPU", "Set it to false"),
        ("trainer.cpu_offload=true",),
    ),
    Mistake("a device of no such name", ("trainer.device", "`gpu`", "cuda:N"), ("trainer.device=gpu",)),
    Mistake("a GPU by its brand", ("rollout.device", "`CUDA:0`", "cuda:N"), ("rollout.device=CUDA:0",)),
    Mistake(
        "a misspelt tracker", ("logging.trackers", "'wandbb'", "tensorboard, wandb"),
        ("logging.trackers=[wandbb]",),
    ),
    Mistake(
        "a tracker in no file", ("logging.trackers", "no file gone.py"), ("logging.trackers=[gone.py:make]",)
    ),
    Mistake(
        "a notification by no program", ("notify.command", "'gone'", "PATH"), ("notify.command=[gone, now]",)
    ),
    Mistake("a way to resume that is none", ("run.resume", "'sometimes'"), ("run.resume=sometimes",)),
    Mistake("a name that leaves the folder of runs", ("run.name", "'../x'", "run.dir"), ("run.name=../x",)),
    Mistake("a name of two folders", ("run.name", "'a/b'", "run.dir"), ("run.name=a/b",)),
    Mistake("a text for a list", ("logging.trackers", "such as [a, b]"), ("logging.trackers=tensorboard",)),
    Mistake("nothing for a text", ("run.name", "nothing is given for it"), ("run.name=",)),
    Mistake(
        "more workers than connections", ("rollout.instances", "are too many", "Start fewer"),
        ("rollout.instances=999999999",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_answered_with_its_place_and_a_remedy(mistake, tmp_path, monkeypatch, capsys):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "GPUS", ())
    monkeypatch.setattr(problems, "limit", lambda: DescriptorLimit(20_000, 20_000))
    if mistake.prepare is not None:
        mistake.prepare(tmp_path)
    assert main([*mistake.command, *mistake.change]) == 2
    said = capsys.readouterr()
    answer = said.out + said.err
    assert [word for word in mistake.words if word not in answer] == [], answer
    assert "Traceback" not in answer


def test_a_machine_with_a_gpu_and_workers_elsewhere_are_no_mistake(tmp_path, monkeypatch, capsys):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    on_gpus = ["check", "run.yaml", "rollout.device=cuda", "trainer.device=cuda"]
    monkeypatch.setattr(memory, "GPUS", ())
    assert main([*on_gpus, "rollout.instances=0", "trainer.local=false"]) == 0, capsys.readouterr()
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(memory, "GPUS", (tmp_path / "nvidia0",))
    assert main(on_gpus) == 0, capsys.readouterr()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert main(on_gpus) == 0
    assert "of 4 GPUs, the trainer has GPU 0" in capsys.readouterr().out
    assert json.loads((tmp_path / "model" / "config.json").read_text())
