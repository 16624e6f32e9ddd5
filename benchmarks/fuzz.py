"""Malformed frames against the codec and live runs: `python -m benchmarks.fuzz [--frames N] [--live N]`.

Every frame is a real message with something wrong with it (bits, lengths, types, counts, order), or noise.
The codec must answer RemoteError or a valid packet, nothing else. Live runs, one without keys and one under
CURVE, must end like undisturbed ones: every step made, no failure, the token ledger closed. Under CURVE the
noise comes first from holders of a valid key, then from those that have none, a wrong one, or no ZeroMQ.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import zmq

from benchmarks.soak import config
from controller import Controller
from protocol.wire.security import WorkerKey, load_worker_key, make_keys
from tests.support.malformed import fuzz_codec, fuzz_door, fuzz_socket


async def _live(count: int, *, seed: int, steps: int, is_secure: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        key = load_worker_key(make_keys(keys, "noise") or "") if is_secure else None
        controller_keys = {"keys": str(keys)} if is_secure else {}
        settings = config(
            folder, 1_000_000, bind="tcp://127.0.0.1:*", lease_s=5.0, respawns=100, **controller_keys
        )
        said: list[str] = []
        async with Controller(settings, on_warning=said.append) as controller:
            noise: asyncio.Task[None] | None = None
            before = psutil.Process().memory_info().rss
            async for step in controller.train():
                if noise is None:  # workers are up, and the run has made a step
                    endpoint = (controller.run_dir / "address").read_text().strip()
                    noise = asyncio.create_task(_disturb(endpoint, count, seed=seed, key=key, said=said))
                if noise.done() and step.policy_version >= steps:
                    controller.stop("the noise is over")
            assert noise is not None
            await noise
        summary = controller.summary
        grown = (psutil.Process().memory_info().rss - before) / 2**20
        spent = sum(summary[f"tokens/{e}"] for e in ("trained", "aborted", "filtered", "lost", "in_flight"))
        print(
            f"  the run, {summary['steps']} steps: success {summary['is_success']}, bound violations "
            f"{summary['staleness/violations']}, ledger closes {spent == summary['tokens/generated']}, "
            f"memory +{grown:.0f} MiB"
        )
        assert summary["is_success"], summary["reason"]
        assert spent == summary["tokens/generated"]


async def _disturb(endpoint: str, count: int, *, seed: int, key: WorkerKey | None, said: list[str]) -> None:
    """Send the noise, and print how much of it there was and what the run said of it."""
    lines = len(said)
    sent = await asyncio.to_thread(fuzz_socket, endpoint, count, seed=seed, key=key)
    whose = "without keys" if key is None else "under CURVE, with a valid key"
    print(
        f"live, {whose}: {sent['frames']} packets from {sent['peers']} peers ({sent['let_in']} let in), "
        f"{len(said) - lines} lines said",
        flush=True,
    )
    if key is not None:
        lines = len(said)
        sent = await asyncio.to_thread(fuzz_door, endpoint, count, seed=seed, server=key.server)
        print(
            f"live, under CURVE, with none: {sent['frames']} packets from {sent['peers']} peers "
            f"(a third over bare TCP; {sent['refused']} of the others told that they are refused), "
            f"{len(said) - lines} lines said",
            flush=True,
        )


def main() -> None:
    """Print what was sent and what became of it; fails on the first thing that is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="against the codec")
    parser.add_argument("--live", type=int, default=10_000, help="against a run, of each kind")
    parser.add_argument("--steps", type=int, default=30, help="of each run, at least")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, libzmq {zmq.zmq_version()}")
    started = time.monotonic()
    outcomes = fuzz_codec(options.frames, seed=options.seed)
    print(
        f"codec: {outcomes.total()} frames, {outcomes['refused']} refused with RemoteError, "
        f"{outcomes['accepted']} valid after all, nothing else ({time.monotonic() - started:.0f} s)"
    )
    if options.live:
        for is_secure in (False, True):
            asyncio.run(_live(options.live, seed=options.seed, steps=options.steps, is_secure=is_secure))


if __name__ == "__main__":
    main()
