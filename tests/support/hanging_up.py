"""Closes the terminal of this process, by its signals: the kernel and the shell may both send SIGHUP."""

import asyncio
import os
import signal


async def hang_up_twice() -> None:
    """Send this process SIGHUP twice; returns once each has been handled."""
    is_handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, is_handled.set)
    for _ in range(2):
        is_handled.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR2)  # of a higher number, so it is handled after SIGHUP
        await is_handled.wait()
