"""Every message of the wire; the core works with the same classes.

Invariants:
- A message is a record (record.py), and positional: its fields, in order, are the msgpack array that travels.
- Bulk data (tokens, logprobs, prompt rows) is never a field. A message names the frames that go with it:
  `outgoing_payload()` lists, for each frame, the stored pieces that the sender concatenates;
  `incoming_frames()` says what each frame must be, and `kept()` where the receiver keeps it.
- Texts that people read have no control characters: names with some are refused, longer texts are made plain.
- Tags are never reused; a change of fields raises `PROTOCOL_VERSION`.

To add a message, in at most four files:
1. Its class, in `from_workers.py`, `from_agents.py`, `from_controller.py`, `to_agents.py`, `device.py` or
   `progress.py`: a new tag, `said_by`, `heard_by`, its fields, its frames if it has any; and its name in the
   types of its roles at the end of the first four (`FromRollout`, `ToTrainer`, ...). Importing the package
   fails while these disagree.
2. Its receiver. A worker's message: a `case` in the ladder of its role in `controller/core/hearing.py`. The
   controller's: a `case` in `_handle` of `workers/<role>/worker.py`, and in `handle` of
   `workers/simulated/<role>.py`. The type checker and tests/unit/test_messages_are_heard.py fail until then.
3. Its sender. What a worker claims is checked in `controller/core/decisions/workers/plausibility.py` where a
   liar could do harm with it; an order that has to be answered in time has a line in `limits.py` beside it.
4. Raise `PROTOCOL_VERSION` in `catalogue.py`.
"""

# ruff: noqa: F403  a message is named where it is defined, and not a second time here
from protocol.messages.catalogue import *
from protocol.messages.device import *
from protocol.messages.from_agents import *
from protocol.messages.from_controller import *
from protocol.messages.from_workers import *
from protocol.messages.pieces import *
from protocol.messages.progress import *
from protocol.messages.to_agents import *
