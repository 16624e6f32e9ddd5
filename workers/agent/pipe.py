"""The messages between an agent worker and its episode processes, as packets of workers/children.

Questions and answers are JSON in bytes: packets shorten long texts, but never bytes.
"""

MAX_WORD_BYTES = 40 << 20  # a request, and a state of 16 MB

SETUP = "setup"  # to the process: the agent as JSON (AgentPool makes it); the first packet
BEGIN, END = "begin", "end"  # to it: episode, seed, row, url and key of the door or "", state or b""; episode
ANSWER, REFUSE = "answer", "refuse"  # to it: episode, question, JSON; episode, question, limit or "", text
COUNTED = "counted"
"""To the process, the result of a request at the door.

Episode, the place of the turn in the order of asking (-1 if it is not trained), the limit that its client was
told or "" (with it, the number of turns asked for), the id of the answer or "".
"""
READY, BROKEN = "ready", "broken"  # from it: whether its agent asks at a door; the reason
ASK = "ask"  # from it: episode, question, JSON[, state]
ENDED, FAILED = "ended", "failed"  # from it: episode, JSON; episode, kind, reason
GONE = "gone"  # from it: an episode that was cancelled has ended
BLOCKED = "blocked"  # from it: episode or -1, and the seconds for which it has blocked the event loop
ALIVE = "alive"  # from it: -1; its event loop runs; sent every second
