"""Probes tiny models of every family and writes docs/models.md: `python -m docs.make_models`.

Ends with 1 if a part computes a family wrong, or fails in other words than a refusal. vLLM's column is read
out of the registry of an installed vLLM (`--vllm`: the folder of the package); nothing is run there.
"""

import argparse
import logging
import re
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers

from benchmarks.families.configs import BEYOND, FAMILIES, LONGEST, SPAN, Family
from benchmarks.families.probe import BOUND, Row, Verdict, probe
from controller.check.vllm import REGISTRY, supported_architectures

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- families: python -m docs.make_models -->\n", "<!-- end of families -->"
HEAD = (
    "| family | `model_type` | torch engine | trainer | trainer with LoRA | vLLM |\n"
    "|---|---|---|---|---|---|\n"
)


def table(rows: list[tuple[Family, Row]], architectures: set[str]) -> str:
    """All rows, between two marks."""
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    lines = [
        f"| {family.name} | `{family.model_type}` | {row.engine.text} | {row.trainer.text} "
        f"| {row.adapter.text} | {vllm_cell(row, architectures)} |\n"
        for family, row in rows
    ]
    verdicts = [verdict for _, row in rows for verdict in (row.engine, row.trainer, row.adapter)]
    wrong = sum(not verdict.is_right for verdict in verdicts)
    exact = {name: sum(getattr(row, name).is_exact for _, row in rows) for name in Row._fields[:3]}
    summary = (
        f"\n{len(rows)} families, {versions}, sequences of up to {LONGEST} tokens, windows of {SPAN}, "
        f"chunks and original lengths of {BEYOND}.\nExact: engine {exact['engine']}, trainer "
        f"{exact['trainer']}, LoRA {exact['adapter']}; the rest refused; above {BOUND:.0e}: {wrong}.\n"
    )
    return BEGIN + HEAD + "".join(lines) + summary + END


def vllm_cell(row: Row, architectures: set[str]) -> str:
    """What vLLM's registry says of a family, and what `check` makes of it."""
    return "in its registry" if row.architecture in architectures else "refused: not in its registry"


def _probed(family: Family) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return probe(family, Path(folder))
        except Exception as error:  # whatever a family does, the table has it, as wrong
            failed = Verdict(False, f"**FAILS** {type(error).__name__}: {str(error)[:80]}")
            return Row(failed, failed, failed, "")


def main() -> int:
    """Write the page's table; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, help="folder of the package vllm; of .venv-vllm by default")
    options = parser.parse_args()
    package = options.vllm or next(ROOT.glob(".venv-vllm/lib/*/site-packages/vllm"), None)
    architectures = supported_architectures(package / REGISTRY) if package else set()
    if not architectures:
        parser.error(
            f"no registry of vLLM at {package}: name its package by --vllm, or: launch.py install --vllm"
        )
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows: list[tuple[Family, Row]] = []
    for family in FAMILIES:
        rows.append((family, row := _probed(family)))
        print(f"{family.name}: {row.engine.text} | {row.trainer.text} | {row.adapter.text}", flush=True)
    found = table(rows, architectures)
    page = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    PAGE.write_text(page.sub(lambda _: found, PAGE.read_text()), encoding="utf-8")
    return int("**" in found)


if __name__ == "__main__":
    sys.exit(main())
