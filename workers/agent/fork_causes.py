"""Why a request begins another conversation of its episode: told by what was said before.

Invariants: pure; only conversations of the same kind, trained or not, are looked at; what cannot be told from
a conversation of its own is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.messages.pieces import ForkCause
from workers.agent.messages import is_same
from workers.agent.transcript import Talk, Transcript

OPENING = ("system", "developer")


def cause_of(held: Sequence[Transcript], talk: Talk, tools: Any) -> ForkCause:
    """Why these messages, as `normal` makes them, go on from none of the conversations.

    `template`: they are one of them and more, and yet its tokens are not their beginning. `compacted`: fewer
    turns, as something stands in the place of earlier ones, or they are left out. `edited`: something else
    was changed, tools among it. `branched`: nothing was; another answer is asked for, or it is a sub-agent.
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
    """The same of a request of token ids: `edited` if it changes what follows the first of them."""
    for one in held:
        pairs = zip(one.tokens, whole, strict=False)
        same = next((place for place, (old, new) in enumerate(pairs) if old != new), None)
        if same is not None and same >= one.opening:
            return "edited"
    return "branched"


def _turns(talk: Talk) -> list[Mapping[str, Any]]:
    return [message for message in talk if message["role"] == "assistant"]
