"""`python -m tests.simulation.oracle FIRST [COUNT]`: runs worlds; a single one tells all that happens."""

import sys
import time
import traceback
from collections import Counter

from tests.simulation.oracle.host import Host
from tests.simulation.oracle.world import draw


def main(first: int, count: int) -> int:
    """Run them; how many failed."""
    began, failed, endings, totals = time.process_time(), 0, Counter[str](), Counter[str]()
    for seed in range(first, first + count):
        host = Host(draw(seed), tell=print if count == 1 else None)
        try:
            end = host.run()
            endings["success" if end.is_success else " ".join(end.reason.split()[:6])] += 1
        except Exception as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"world {seed}: {type(error).__name__} at {where.name}:{where.lineno}: {str(error)[:300]}")
            if count == 1:
                traceback.print_exc()
        totals += Counter(events=host.events, restarts=host.restarts, faults=len(host.world.faults))
        totals += Counter(
            trained=len(host.books.trained),
            closed=host.core.state.accounts.counts["limits/closed"],
            respawned=host.core.state.accounts.counts["workers/respawned"],
            tokens=host.books.heard_tokens,
        )
    spent = time.process_time() - began
    print(f"{count} worlds, {failed} failed, {spent:.1f} s of CPU; {dict(totals)}; ends: {dict(endings)}")
    return failed


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(bool(main(numbers[0], numbers[1] if len(numbers) > 1 else 1)))
