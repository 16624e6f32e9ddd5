"""The messages between an agent worker and its episode processes, as packets of workers/children.

Questions and answers are JSON in bytes: packets shorten long texts, but never bytes.
"""

MAX_WORD_BYTES = 40 << 20  # a request, and a state of 16 MB

SETUP = "setup"  # to the process: the agent as JSON (AgentCode); first of all
BEGIN, END = "begin", "end"  # to it: episode, seed, row, url and key of the door or "", state or b""; episode
ANSWER, REFUSE = "answer", "refuse"  # to it: episode, question, JSON; episode, question, limit or "", text
COUNTED = "counted"
"""To it, of what came of a request at the door: episode, the place of the turn in the order of asking or -1
if none is trained, the limit that its client was told or "", the id of the answer or ""."""
READY, BROKEN = "ready", "broken"  # from it: whether its agent asks at a door; the reason
ASK = "ask"  # from it: episode, question, JSON[, state]
ENDED, FAILED = "ended", "failed"  # from it: episode, JSON; episode, kind, reason
GONE = "gone"  # from it: an episode that was to end has ended
BLOCKED = "blocked"  # from it: episode or -1, and for how many seconds it has kept the event loop
ALIVE = "alive"  # from it: -1; its event loop runs, said every second
