"""Rules for devices that rollout and trainer use in turn (`placement: colocated`).

Invariant: pure; each rule names the fields that it reads, and values that would be accepted.
"""

from collections.abc import Iterator

from controller.config.models import Config
from protocol.engines import ENGINES

Problem = tuple[tuple[str, ...], str]


def colocation_problems(config: Config) -> Iterator[Problem]:
    """(fields read, what is wrong) for every rule that a colocated run breaks."""
    if config.is_colocated:
        for field, (is_there, text) in (_of_trainer(config) | _of_rollout(config)).items():
            if is_there:
                yield (field, "placement"), text


def _of_trainer(config: Config) -> dict[str, tuple[bool, str]]:
    """By field: whether its value is refused, and the sentence that says why."""
    trainer = config.trainer
    return {
        "trainer.algorithm": (
            trainer.is_supervised,
            "is sft, which generates nothing, so the trainer has the device for itself; leave placement out.",
        ),
        "trainer.streaming": (
            trainer.streaming,
            "trains while groups are still generated, and with placement `colocated` only one side works at "
            "a time; set trainer.streaming: false.",
        ),
        "trainer.local": (
            not trainer.local,
            "is false, so the trainer runs elsewhere, and with placement `colocated` both sides use the "
            "devices of this machine; leave trainer.local or placement out.",
        ),
        "trainer.lora.rank": (
            trainer.lora.rank > 0,
            f"is {trainer.lora.rank}: instances get versions of the adapter alone, and so cannot drop the "
            "weights below it with placement `colocated`; give 0, or leave placement out.",
        ),
    }


def _of_rollout(config: Config) -> dict[str, tuple[bool, str]]:
    rollout, staleness = config.rollout, config.staleness
    return {
        "rollout.instances": (
            rollout.instances == 0,
            "is 0, so instances attach from elsewhere, and with placement `colocated` both sides use the "
            "devices of this machine; give at least 1, or leave placement out.",
        ),
        "rollout.engine": (
            rollout.engine in ENGINES and not ENGINES[rollout.engine].colocated,
            f"is {rollout.engine}, which StaleFlow cannot make leave a device (vLLM's sleep was never "
            "tried, for want of a GPU); with placement `colocated` give torch, or leave placement out.",
        ),
        "rollout.device": (
            rollout.device != config.trainer.device,
            f"is {rollout.device} and trainer.device is {config.trainer.device}, and with placement "
            "`colocated` both sides use the same devices; give both the same.",
        ),
        "staleness.partial_rollout": (
            not staleness.partial_rollout,
            "is false, so responses cannot be interrupted, and with placement `colocated` they are when the "
            "trainer takes the device; set it to true, or leave placement out.",
        ),
        "staleness.keep_kv": (
            staleness.keep_kv,
            "is true, and with placement `colocated` the KV cache is freed when the trainer takes the "
            "device; set it to false, or leave placement out.",
        ),
    }
