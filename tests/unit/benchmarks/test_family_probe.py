"""The probe of model families: it measures what runs, names what is refused, and would see what is wrong."""

import logging

import pytest

from benchmarks.families import probe as probing
from benchmarks.families.configs import FAMILIES, LONGEST
from benchmarks.families.probe import gradient_gap, probe
from workers.trainer import packed_forward

pytestmark = pytest.mark.filterwarnings("ignore")
BY_TYPE = {family.model_type: family for family in FAMILIES}
SAMPLE = [BY_TYPE[name] for name in ("ministral", "gpt_oss", "qwen3_5_text")]


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR)


def assert_right(row):
    for verdict in (row.engine, row.trainer, row.adapter):
        assert verdict.is_right, verdict.text
        assert "refused: The model" not in verdict.text  # a refusal that nobody has shortened


@pytest.mark.parametrize("family", SAMPLE, ids=lambda family: family.model_type)
def test_families_with_windows_sinks_and_linear_attention_are_exact_or_refused(family, tmp_path):
    assert_right(probe(family, tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_exact_or_refused(family, tmp_path):
    assert_right(probe(family, tmp_path))


def test_a_family_with_a_length_is_exact_up_to_it(tmp_path):
    row = probe(BY_TYPE["llama4_text"], tmp_path)
    assert row.trainer.is_exact
    assert row.trainer.text.endswith("up to 16 tokens; beyond refused: chunks")


@pytest.mark.parametrize("lost", ["sliding_window", "s_aux"])
def test_what_no_self_check_saw_would_be_called_wrong(lost, tmp_path, monkeypatch):
    family = BY_TYPE["gpt_oss"]
    assert probe(family, tmp_path).trainer.is_right
    whole = packed_forward.packed_sdpa

    def without(*arguments, **options):
        return whole(*arguments, **{**options, lost: None})

    packed_forward.AttentionInterface.register(packed_forward.PACKED_SDPA, without)
    monkeypatch.setattr(probing, "check_no_leak", lambda *_, **__: None)
    try:
        assert gradient_gap(tmp_path, LONGEST) > 100 * probing.BOUND
    finally:
        packed_forward.AttentionInterface.register(packed_forward.PACKED_SDPA, whole)
