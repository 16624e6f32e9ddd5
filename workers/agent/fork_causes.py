"""Why a request begins another conversation of its episode, found by comparing it with earlier ones.

Invariants: pure; only conversations of the same kind, trained or not, are compared; a request without a
recognizable cause counts as a separate conversation (`branched`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.messages.pieces import ForkCause
from workers.agent.messages import is_same
from workers.agent.transcript import Talk, Transcript

OPENING = ("system", "developer")


def cause_of(held: Sequence[Transcript], talk: Talk, tools: Any) -> ForkCause:
    """Why these normalized messages continue none of the conversations.

    `template`: they continue one, but the template writes its past differently. `compacted`: they have fewer
    turns, because earlier ones were replaced or left out. `edited`: something else was changed, tools
    included. `branched`: nothing was; another answer is wanted, or it is a sub-agent.
    """
    if any(not one.is_open and one.goes_on_as(talk, tools) for one in held):
        return "template"
    shared = [(one.shared(talk), len(one.talk), one) for one in held if one.talk]
    if not shared:
        return "branched"
    same, _, nearest = max(shared, key=lambda found: found[:2])
    if same == len(talk) or (same == len(nearest.talk) and tools == nearest.tools):
        return "branched"
    new, old = talk[same:], nearest.talk[same:]
    repeats = any(is_same(turn, told) for turn in _turns(nearest.talk) for told in _turns(new))
    opening = next((place for place, one in enumerate(talk) if one["role"] not in OPENING), len(talk))
    if same <= opening and not repeats:
        return "branched"
    is_shorter = len(_turns(talk)) < len(_turns(nearest.talk))
    is_replaced = bool(old) and old[0]["role"] == "assistant" != new[0]["role"]
    return "compacted" if is_shorter and (is_replaced or repeats) else "edited"


def cause_of_tokens(held: Sequence[Transcript], whole: Sequence[int]) -> ForkCause:
    """The cause for token ids: `edited` if tokens after those that were given first are changed."""
    for one in held:
        pairs = zip(one.tokens, whole, strict=False)
        same = next((place for place, (old, new) in enumerate(pairs) if old != new), None)
        if same is not None and same >= one.opening:
            return "edited"
    return "branched"


def _turns(talk: Talk) -> list[Mapping[str, Any]]:
    return [message for message in talk if message["role"] == "assistant"]
