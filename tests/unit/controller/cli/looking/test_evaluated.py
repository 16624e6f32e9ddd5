"""What people read of an evaluation."""

from controller.cli.looking.evaluated import in_words
from controller.core.state.evaluation_report import Answered, line


def of(rewards, **more):
    answered = {number: Answered(tuple(one), (4, 6), 1, {0: 10}) for number, one in enumerate(rewards)}
    sources = more.pop("sources", ["data"] * (len(rewards) + 2))
    failed = more.pop("failed", {})
    return {"samples": 2, **line(answered, failed, sources, samples=2, threshold=1.0), **more}


def test_figures_are_one_line():
    assert in_words(of([(1.0, 0.0), (1.0, 1.0)])) == (
        "2 prompts, 2 responses each: pass@1 0.750 ± 0.250, pass@2 1.000, reward/mean 0.750, "
        "5 tokens, 50 % cut."
    )


def test_forks_of_episodes_are_told_by_their_cause():
    told = in_words(of([(1.0, 0.0)], **{"turns/mean": 2.5, "forks/compacted": 0.25, "forks/edited": 1.0}))
    assert told.endswith("2.5 turns, 0.25 compacted forks an episode, 1.00 edited forks an episode.")


def test_what_turns_took_beside_the_engine_is_told():
    told = in_words(of([(1.0, 0.0)], **{"turn/overhead_ms/p50": 1.25, "turn/overhead_ms/p99": 14.0}))
    assert told.endswith(", 1.2 ms a turn beside the engine (p99 14.0 ms).")


def test_sources_and_failures_have_lines_of_their_own():
    told = in_words(of([(1.0, 0.0), (0.0, 0.0)], sources=["a", "b", "b"], failed={2: "no answer"}))
    assert "\na, 1 prompts: pass@1 0.500" in told
    assert told.endswith("1 prompts failed and are in no figure:\n  b, prompt 2: no answer")


def test_nothing_answered_is_said():
    assert in_words(of([], sources=["a"], failed={0: "no"})).startswith(
        "0 prompts, 2 responses each: none was"
    )
