"""The messages between a reward worker and its function's processes, as packets."""

MAX_ANSWER_BYTES = 1 << 20

SETUP = "setup"  # to the process: the reward as JSON in bytes, and the fields of its Place; first of all
SCORE, CANCEL = "score", "cancel"  # to the process: a number, and the request; a number
READY, BROKEN = "ready", "broken"  # from it: is the function async, is it called per response; the reason
BEGUN, HEARD = "begun", "heard"  # a number; a number, and for how many seconds its event loop was blocked
SCORED, FAILED = "scored", "failed"  # a number, and the rewards; a number, and the reason
