"""The steps of a simulated engine: continuous batching, chunked prefill, KV blocks, preemption, prefixes.

Invariants:
- The batch changes only between two steps: a change in the middle of a step waits for its end.
- Between two changes time is a closed form of the number of decode steps (`StepCost.stretch_s`); a change
  costs O(log n), through a heap on the global step counter at which each request ends.
- A request starts only if its KV fits; KV grows token by token; when it overflows, the youngest request goes
  to the front of the queue and is prefilled again later.
- Siblings share the full blocks of their prompt while one of them is resident; a pull empties the cache.
- Of agents, content of ended turns stays in the cache while its blocks are free; the oldest is dropped first.
"""

from collections import OrderedDict, deque
from heapq import heappop, heappush

from workers.simulated.physics import BLOCK, StepCost, blocks

EPSILON_S = 1e-9  # two ways to add up the same steps differ by less


class Request:
    """One attempt inside the engine."""

    __slots__ = (
        "base", "end_step", "group", "is_decoding", "is_redone", "joined", "limit", "prefilled", "reported",
        "resident", "shared", "tag",
    )  # fmt: skip

    def __init__(self, tag: tuple[int, int, int], *, resident: int, limit: int, is_redone: bool) -> None:
        """`resident`: tokens that it has on arrival; `limit`: new tokens until it ends.

        `is_redone`: its prefill was done elsewhere before.
        """
        self.tag, self.group, self.resident, self.limit = tag, tag[0], resident, limit
        self.base = self.joined = 0  # new tokens at step `joined`; one more with each step since, if decoding
        self.is_decoding, self.is_redone = False, is_redone
        self.prefilled = self.shared = self.reported = 0
        self.end_step = -1

    def tokens(self, step: int) -> int:
        """New tokens of this attempt after `step` steps of the engine."""
        return self.base + step - self.joined if self.is_decoding else self.base


class SimulatedEngine:
    """The steps of one instance. Times are absolute seconds."""

    def __init__(self, cost: StepCost, *, rows: int, kv_blocks: int, token_budget: int, prompt_tokens: int,
                 is_reprefill_free: bool = False, parks_turns: bool = False) -> None:  # fmt: skip
        self.cost, self.rows, self.kv_blocks, self.token_budget = cost, rows, kv_blocks, token_budget
        self.speed = 1.0
        self.queue: deque[Request] = deque()
        self.requests: dict[tuple[int, int, int], Request] = {}
        self.decode_steps = self.decode_tokens = self.decode_context = 0
        self.decode_s = self.prefill_s = self.busy_s = 0.0
        self.prefill_tokens = self.reprefill_tokens = self.preemptions = 0
        self.reused_tokens = self.parked_tokens = 0
        self._parked: OrderedDict[tuple[int, int], int] = OrderedDict()  # (group, member) -> tokens
        self._parked_blocks, self._parks_turns = 0, parks_turns
        self._prompt_tokens, self._is_reprefill_free = prompt_tokens, is_reprefill_free
        self._step, self._at = 0, 0.0  # steps made, and when the last of them ended
        self._committed: tuple[float, float, int, int, list[tuple[Request, int]]] | None = None
        self._resident: dict[Request, None] = {}  # in the order of their start
        self._prefilling: list[Request] = []
        self._running = self._offset = 0  # decoding requests; sum of their contexts less running * step
        self._phases = [0] * BLOCK  # decoding requests by context less step, modulo the block
        self._used = 0  # blocks
        self._prefixes: dict[int, int] = {}  # group -> requests that hold its prompt
        self._ends: list[tuple[int, int, Request]] = []
        self._count = 0

    # -- what the worker asks ---------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """The number of started requests."""
        return len(self._resident)

    @property
    def resident_tokens(self) -> int:
        """Tokens in the KV cache, with a shared prompt counted for each of its requests."""
        waiting = sum(request.resident + request.base for request in self._prefilling)
        return self._context() + waiting

    def tokens(self, request: Request) -> int:
        """New tokens of a request, in whole steps."""
        return request.tokens(self._step)

    def next_change_s(self) -> float | None:
        """When `advance` should be called again at the latest; None if nothing changes by itself.

        Call `advance(now)` before.
        """
        if self._committed is not None:
            return self._committed[0]
        if self._running:
            return self._at + self._stretch_s(self._steps_to_change())
        return self._at if self.queue or self._prefilling else None  # the end of a pull

    def advance(self, now: float) -> list[Request]:
        """Make all steps that end by `now`; returns the requests that ended in them, in order."""
        ended: list[Request] = []
        while True:
            if self._committed is not None:
                if self._committed[0] > now + EPSILON_S:
                    return ended
                self._finish_step()
            if self._at > now + EPSILON_S:
                return ended  # the engine pulls until then
            self._take_ended(ended)
            if (self.queue or self._prefilling) and self._begin_mixed():
                continue
            if not self._running:
                if self._at < now:
                    self._at = now
                return ended
            self._make_room()
            steps = self._steps_to_change()
            if self._at + self._stretch_s(steps) > now + EPSILON_S:
                running, context = self._running, self._context()
                self._decode(self.cost.steps_within(running, context, (now - self._at) * self.speed))
                return ended
            self._decode(steps)

    def add(self, now: float, request: Request) -> None:
        """Queue a request. Call `advance(now)` before."""
        self._hold(now)
        self.requests[request.tag] = request
        self.queue.append(request)

    def remove(self, now: float, tag: tuple[int, int, int]) -> Request | None:
        """Remove a request, with its tokens; None if it is not here.

        Call `advance(now)` before.
        """
        request = self.requests.get(tag)
        if request is None:
            return None
        self._hold(now)
        request.base = request.tokens(self._step)
        self._leave(request)
        return request

    def clear(self, now: float, until: float) -> None:
        """Empty the KV cache and pause until `until`; running requests are prefilled again.

        Call `advance(now)` before.
        """
        for request in reversed(list(self._resident)):
            self._evict(request)
        while self._parked:
            self._forget_oldest()
        self._committed, self._at = None, until

    def pause(self, until: float) -> None:
        """Pause until `until` and keep the KV cache, for new weights under running requests.

        Call `advance` before.
        """
        self._committed, self._at = None, until

    def set_speed(self, now: float, speed: float) -> None:
        """Make the engine `speed` times as fast as its coefficients say, from the next step on.

        Call `advance(now)` before.
        """
        self._hold(now)
        self.speed = speed

    # -- steps ------------------------------------------------------------------------------------------

    def _context(self) -> int:
        return self._offset + self._running * self._step

    def _stretch_s(self, steps: int) -> float:
        return self.cost.stretch_s(self._running, self._context(), steps) / self.speed

    def _hold(self, now: float) -> None:
        """Fix the end of the step in progress, whatever changes meanwhile."""
        if self._committed is None and self._running and self._at < now - EPSILON_S:
            self._commit([], self._stretch_s(1))
        elif self._committed is None and self._at < now:
            self._at = now

    def _commit(self, plan: list[tuple[Request, int]], seconds: float) -> None:
        self._committed = (self._at + seconds, seconds, self._running, self._context(), plan)

    def _finish_step(self) -> None:
        assert self._committed is not None
        self._at, seconds, running, context, plan = self._committed
        self._committed = None
        self._used += self._growth(1)
        self._step += 1
        self.busy_s += seconds
        if plan:
            self.prefill_s += seconds
        else:
            self._count_decode(1, running, context, seconds)
        for request, count in plan:
            if request not in self._resident:
                continue  # it was taken away in the middle of the step
            request.prefilled += count
            if request.prefilled == request.resident + request.base:
                self._join(request)

    def _decode(self, steps: int) -> None:
        if steps:
            seconds = self._stretch_s(steps)
            self._count_decode(steps, self._running, self._context(), seconds)
            self.busy_s += seconds
            self._used += self._growth(steps)
            self._step += steps
            self._at += seconds

    def _count_decode(self, steps: int, running: int, context: int, seconds: float) -> None:
        self.decode_steps += steps
        self.decode_tokens += steps * running
        self.decode_context += steps * context + running * (steps * (steps - 1) // 2)
        self.decode_s += seconds

    def _begin_mixed(self) -> bool:
        """Start a step that prefills; returns False if there is nothing to prefill."""
        self._make_room()
        budget = max(1, self.token_budget - self._running)
        plan: list[tuple[Request, int]] = []
        for request in self._prefilling:
            budget -= self._plan(request, budget, plan)
        while budget > 0 and self.queue and len(self._resident) < self.rows and self._fits(self.queue[0]):
            request = self.queue.popleft()
            self._start(request)
            budget -= self._plan(request, budget, plan)
        if not plan:
            return False
        chunks = [(count, request.prefilled) for request, count in plan]
        if self._is_reprefill_free:
            chunks = [
                chunk for chunk, (request, _) in zip(chunks, plan, strict=True) if not request.is_redone
            ]
        for request, count in plan:
            self.prefill_tokens += count
            self.reprefill_tokens += count if request.is_redone else 0
        seconds = self.cost.mixed_s(chunks, self._running, self._context()) / self.speed
        self._commit(plan, seconds)
        return True

    def _plan(self, request: Request, budget: int, plan: list[tuple[Request, int]]) -> int:
        count = min(budget, request.resident + request.base - request.prefilled)
        if count > 0:
            plan.append((request, count))
        return count

    def _steps_to_change(self) -> int:
        """Decode steps until a request ends or the KV cache overflows; at least 1."""
        while self._ends and not self._is_current(self._ends[0]):
            heappop(self._ends)
        free, room = self.kv_blocks - self._used, 0
        if free < self._running * (self._ends[0][0] - self._step + BLOCK) // BLOCK + self._running:
            cycles = free // self._running
            free -= cycles * self._running
            room = cycles * BLOCK
            for i in range(BLOCK):
                free -= self._phases[-(self._step + i) % BLOCK]
                if free < 0:
                    break
                room += 1
            return max(1, min(room, self._ends[0][0] - self._step))
        return self._ends[0][0] - self._step

    # -- KV cache ---------------------------------------------------------------------------------------

    def _growth(self, steps: int) -> int:
        """Blocks that `steps` decode steps of the batch take."""
        if steps == 1:  # asked for at every change of the batch
            return self._phases[-self._step % BLOCK]
        grown = steps // BLOCK * self._running
        for i in range(steps % BLOCK):
            grown += self._phases[-(self._step + i) % BLOCK]
        return grown

    def _make_room(self) -> None:
        """Preempt the youngest requests until the next step fits."""
        while self._used + self._growth(1) > self.kv_blocks and len(self._resident) > 1:
            self.preemptions += 1
            self._evict(next(reversed(self._resident)))

    def _fits(self, request: Request) -> bool:
        """Whether the request's KV fits besides the next step of the running ones."""
        need = blocks(request.resident + request.base + 1)
        if self._prefixes.get(request.group):
            need -= self._prompt_blocks(request)
        return self._used + self._growth(1) + need <= self.kv_blocks

    def _prompt_blocks(self, request: Request) -> int:
        """Full blocks of the group's prompt in a request; 0 in a fork of an episode that is shorter."""
        return self._prompt_tokens // BLOCK if request.resident >= self._prompt_tokens else 0

    # -- requests ---------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        """Allocate blocks for all tokens of the request and for its first new token."""
        total, prompt = request.resident + request.base, self._prompt_blocks(request)
        holders = self._prefixes.get(request.group, 0)
        self._prefixes[request.group] = holders + (prompt > 0)
        request.prefilled = min(prompt * BLOCK, total - 1) if holders else 0
        self._take_parked(request, total)
        self._used += blocks(total + 1) - (prompt if holders else 0)
        self._resident[request] = None
        self._prefilling.append(request)

    def _join(self, request: Request) -> None:
        """Begin decoding: the prefill is complete, and the same step sampled the first token."""
        self._prefilling.remove(request)
        request.base += 1
        request.is_decoding, request.joined = True, self._step
        offset = request.resident + request.base - self._step
        self._running += 1
        self._offset += offset
        self._phases[offset % BLOCK] += 1
        request.end_step = self._step + request.limit - request.base
        self._count += 1
        heappush(self._ends, (request.end_step, self._count, request))

    def _is_current(self, entry: tuple[int, int, Request]) -> bool:
        return entry[2].is_decoding and entry[2].end_step == entry[0]

    def _take_ended(self, ended: list[Request]) -> None:
        while self._ends and (self._ends[0][0] <= self._step or not self._is_current(self._ends[0])):
            entry = heappop(self._ends)
            if self._is_current(entry):
                request = entry[2]
                request.base = request.tokens(self._step)
                self._leave(request)
                if self._parks_turns:
                    self._park(request)
                ended.append(request)

    def _leave(self, request: Request) -> None:
        """Remove the request from the engine; `base` holds its tokens already."""
        del self.requests[request.tag]
        if request in self._resident:
            self._release(request)
        else:
            self.queue.remove(request)

    def _evict(self, request: Request) -> None:
        """Move the request to the front of the queue, to be prefilled again."""
        request.base = request.tokens(self._step)
        self._release(request)
        request.is_redone = True
        self.queue.appendleft(request)

    def _park(self, request: Request) -> None:
        """Keep the content of an ended turn in the cache."""
        tokens = request.resident + request.base - 1
        self._parked[request.tag[:2]] = tokens
        self.parked_tokens += tokens
        self._parked_blocks += blocks(tokens)
        self._trim()

    def _take_parked(self, request: Request, total: int) -> None:
        """Reuse the content of the previous turn, if it is still there."""
        self._trim()
        if tokens := self._parked.pop(request.tag[:2], 0):
            self.parked_tokens -= tokens
            self._parked_blocks -= blocks(tokens)
            held = min(tokens, total - 1)
            self.reused_tokens += max(0, held - request.prefilled)
            request.prefilled = max(request.prefilled, held)

    def _trim(self) -> None:
        """Drop the oldest parked content that running requests need room for."""
        while self._parked and self._used + self._parked_blocks > self.kv_blocks:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, tokens = self._parked.popitem(last=False)
        self.parked_tokens -= tokens
        self._parked_blocks -= blocks(tokens)

    def _release(self, request: Request) -> None:
        """Free the request's blocks and row; `base` holds its tokens already."""
        self._trim()
        del self._resident[request]
        total = request.resident + request.base + (0 if request.is_decoding else 1)
        prompt = self._prompt_blocks(request)
        left = self._prefixes.pop(request.group, 0) - (prompt > 0)
        self._used -= blocks(total) - (prompt if left else 0)
        if left:
            self._prefixes[request.group] = left
        if request.is_decoding:
            offset = request.resident + request.base - self._step
            self._running -= 1
            self._offset -= offset
            self._phases[offset % BLOCK] -= 1
            request.is_decoding = False
        else:
            self._prefilling.remove(request)
        request.prefilled = 0
