"""The output of `launch.py eval`: the figures of an evaluation, by data source if there are several.

Invariant: pure; missing figures are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def in_words(line: Mapping[str, Any]) -> str:
    """The line of an evaluation as text for people."""
    told = [_of(line, f"{line['prompts']} prompts, {line['samples']} responses each")]
    sources = line["sources"]
    if len(sources) > 1:
        told += [_of(figures, f"{name}, {figures['prompts']} prompts") for name, figures in sources.items()]
    if line["failed"]:
        told.append(f"{line['failed']} prompts failed and are in no figure:")
        told += [f"  {failure}" for failure in line["failures"]]
    return "\n".join(told)


def _of(figures: Mapping[str, Any], what: str) -> str:
    return f"{what}: " + (", ".join(_figures(figures)) or "none was answered") + "."


def _figures(figures: Mapping[str, Any]) -> Iterator[str]:
    error = figures.get("pass@1/stderr")
    for name, value in figures.items():
        if name.startswith("pass@") and not name.endswith("stderr"):
            shown = f"{name} {value:.3f}"
            yield f"{shown} ± {error:.3f}" if name == "pass@1" and error is not None else shown
        elif name.startswith("reward/"):
            yield f"{name} {value:.3f}"
    if "response_length/mean" in figures:
        yield f"{figures['response_length/mean']:.0f} tokens"
        yield f"{100 * figures['response_length/cut']:.0f} % cut"
    if "turns/mean" in figures:
        yield f"{figures['turns/mean']:.1f} turns"
    for name, value in figures.items():
        if name.startswith("forks/"):
            yield f"{value:.2f} {name.removeprefix('forks/')} forks an episode"
    if "turn/overhead_ms/p50" in figures:
        p50, p99 = (figures[f"turn/overhead_ms/p{share}"] for share in (50, 99))
        yield f"{p50:.1f} ms a turn beside the engine (p99 {p99:.1f} ms)"
