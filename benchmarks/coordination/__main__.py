"""What the coordinator must show, in virtual time: `python -m benchmarks.coordination [PART ...]`.

Each part prints its tables and writes runs/coordination/PART.json; `report` makes docs/coordination.md and
its plots of those files. A run is made once for a state of the source and kept: what was interrupted goes
on. With a compiled core (`launch.py compile`) `cost` is of that core; `STALEFLOW_COMPILED=0 python -m
benchmarks.coordination cost` adds that of the sources.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.coordination import cost, parts, report, strict, throughput
from benchmarks.coordination.cells import KEPT, Runner
from benchmarks.coordination.parts import Table

PARTS: dict[str, Callable[[Runner], tuple[list[Table], list[dict[str, Any]]]]] = {
    "strict": strict.strict,
    "agreement": parts.agreement,
    "throughput": lambda runner: throughput.throughput(runner, shapes=("single",)),
    "groups": lambda runner: throughput.throughput(runner, shapes=("groups", "tied")),
    "freshness": parts.freshness,
    "shape": parts.shape,
    "ablation": parts.ablation,
    "mixed": parts.mixed,
    "cost": cost.cost,
    "determinism": cost.determinism,
}


def kept_as(part: str) -> str:
    """The name of a part's file: the cost of deciding has one for each of the two cores."""
    return "cost_compiled" if part == "cost" and cost.IS_COMPILED else part


def main() -> int:
    """The exit code; prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, report; all if none")
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of each cluster, 12 steps: a smoke test"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=41, help="at most so many train steps in a run")
    parser.add_argument("--scale", type=int, default=1, help="divide instances and prompts of each cluster")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--keep", action="store_true", help="take runs that other source made, too")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in {*PARTS, "report"}]:
        parser.error(f"no part is called {', '.join(unknown)}; expected some of {', '.join(PARTS)}, report")
    runner = Runner(
        processes=options.processes,
        is_quick=options.quick,
        steps=options.steps,
        scale=options.scale,
        seconds=options.seconds,
        seeds=options.seeds,
        keep=options.keep,
    )
    for name in options.parts or [*PARTS, "report"]:
        if name == "report":
            report.write()
            continue
        began = time.time()
        tables, records = PARTS[name](runner)
        for table in tables:
            print(f"\n{report.markdown(table)}", flush=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        kept_s = sum(record.get("wall_s", 0.0) for record in records) / options.processes
        minutes = max(time.time() - began, kept_s) / 60  # those of runs that were there already count, too
        found = {"source": runner.source, "is_quick": options.quick, "minutes": minutes,
                 "seeds": runner.seeds, "steps": runner.steps, "scale": runner.scale,
                 "tables": [table._asdict() for table in tables], "records": records}  # fmt: skip
        suffix = ".quick.json" if options.quick else ".json"
        (KEPT / f"{kept_as(name)}{suffix}").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
