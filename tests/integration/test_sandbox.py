"""Programs in the real sandboxes: what ends them, what they cannot reach, and that none is left behind."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from local_workers import below, command_line
from worker_stand import LIMIT_S, gone

from protocol.errors import ConfigError
from workers.link.descendants import PR_SET_CHILD_SUBREAPER
from workers.sandbox.box import Box
from workers.sandbox.chosen_box import open_box
from workers.sandbox.job import Job, ProgramLimits, ProgramOutcome, SandboxBroken

SMALL = {
    "cpu_s": 30.0,
    "wall_s": 600.0,
    "memory_mb": 256,
    "processes": 8,
    "output_bytes": 65536,
    "file_mb": 1,
}
SLEEPER = "import os; os.execv('/bin/sleep', [{token!r}, '9000'])"


async def opened(kind: str) -> Box:
    try:
        return await open_box(kind)
    except ConfigError as error:
        pytest.skip(f"The sandbox cannot be had on this machine: {error}")


@pytest.fixture(params=["bubblewrap", "limits"])
async def box(request: pytest.FixtureRequest):
    async with await opened(request.param) as made:
        yield made


@pytest.fixture
async def bubblewrap():
    async with await opened("bubblewrap") as made:
        yield made


async def ended(box: Box, source: str, *, stdin: bytes = b"", **limits) -> ProgramOutcome:
    return await box.run(Job("run", {"source": source}, stdin, ProgramLimits(**SMALL | limits)))


@pytest.fixture(autouse=True)
def orphans():
    """What loses its parent becomes a child of this process, is found by `left_over`, and waited for."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {process.pid for process in psutil.Process().children()}
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    adopted = [process for process in psutil.Process().children() if process.pid not in before]
    assert psutil.wait_procs(adopted, timeout=LIMIT_S)[1] == []


def left_over() -> list[str]:
    """Command lines of what runs below this process and is none of the sandbox's own."""
    return [line for line in map(command_line, below()) if line and "workers.sandbox.warden" not in line]


def with_words(words: str) -> list[int]:
    """Processes of this machine whose command line has these."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


async def begun(token: str) -> int:
    """The process of a sleeper, when it sleeps."""
    while not (found := with_words(token)):
        await asyncio.to_thread(os.sched_yield)
    return found[0]


ENDINGS = {
    "loop": ("while True: pass", {"cpu_s": 0.3}, "cpu"),
    "loop in children": ("import os\nos.fork(); os.fork()\nwhile True: pass", {"cpu_s": 0.3}, "cpu"),
    "sleep": ("import time; time.sleep(1000)", {"wall_s": 0.5}, "wall"),
    "ten gigabytes": ("x = bytearray(10 << 30)", {}, "memory"),
    "many small": ("x = []\nwhile True: x.append(bytes(1 << 16))", {}, "memory"),
    "memory of several": (
        "import os, time\nfor i in range(4):\n  if not os.fork(): break\n"
        "x = bytearray(100 << 20)\ntime.sleep(99)",
        {}, "memory",
    ),
    "fork bomb": ("import os\nwhile True: os.fork()", {}, "processes"),
    "threads": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=[99], daemon=True).start()",
        {}, "processes",
    ),
    "output": ("while True: print('x' * 4096)", {}, "output"),
    "errors": ("import sys\nwhile True: sys.stderr.write('x' * 4096)", {}, "output"),
    "file": ("open('f', 'wb').write(bytes(5 << 20))", {}, "file"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_limit_ends_a_program_and_says_its_name(box, name):
    source, limits, expected = ENDINGS[name]
    outcome = await ended(box, source, **limits)
    if name == "threads" and box.backend == "limits" and os.geteuid() != 0:
        assert outcome.limit in ("processes", "memory")
    else:
        assert outcome.limit == expected, outcome
    assert not outcome.ended_well
    assert not left_over(), "something of the program was left"


SOCKETS = {
    "pairs in several processes": """
import os, socket, time
for number in range(4):
    if not os.fork(): break
held = [one for pair in range(58) for one in socket.socketpair()]
for one in held:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
time.sleep(999)
""",
    "closed ones that nobody has accepted": """
import socket
there = socket.socket(socket.AF_UNIX)
there.bind('\\0here')
there.listen(4096)
while True:
    one = socket.socket(socket.AF_UNIX)
    one.connect('\\0here')
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
    one.close()
""",
    "connections over the loopback": """
import socket, time
there = socket.create_server(('127.0.0.1', 0), backlog=4096)
held = []
for number in range(60):
    one = socket.create_connection(there.getsockname()[:2])
    one.setblocking(False)
    held.append(one)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
time.sleep(999)
""",
}
OLD, NEW = "('127.0.0.1', 0)", "('::1', 0), family=socket.AF_INET6"
SOCKETS["connections of IPv6"] = SOCKETS["connections over the loopback"].replace(OLD, NEW)


@pytest.mark.parametrize("name", SOCKETS)
async def test_memory_of_sockets_is_counted(bubblewrap, name):
    outcome = await ended(bubblewrap, SOCKETS[name], memory_mb=128, wall_s=60)
    if b"[Errno 9" in outcome.stderr:
        pytest.skip("no IPv6 on this machine")
    assert outcome.limit == "memory"


async def test_sockets_that_libraries_use_work_under_bubblewrap(bubblewrap):
    source = (
        "import asyncio, multiprocessing, socket\n"
        "async def main():\n"
        "  def serve(reader, writer): writer.write(b'served'); writer.close()\n"
        "  server = await asyncio.start_server(serve, '127.0.0.1', 0)\n"
        "  reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "  print(await reader.read())\n"
        "asyncio.run(main())\n"
        "one, other = multiprocessing.Pipe()\n"
        "one.send([1]); print(other.recv())\n"
        "tcp = socket.socket()\n"
        "tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 600)\n"
        "print(tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) == 600)\n"
        "pair = socket.socketpair()\n"
        "pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)\n"
        "before = pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n"
        "pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
        "print(pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),\n"
        "  pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)\n"
    )
    outcome = await ended(bubblewrap, source)
    assert outcome.stdout.decode().splitlines() == ["b'served'", "[1]", "True", "1 True"], outcome


async def test_a_fork_bomb_that_ignores_refusals_ends_with_its_time(box):
    source = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    outcome = await ended(box, source, cpu_s=1.0, wall_s=3.0)
    assert outcome.limit in ("cpu", "wall", "processes")
    assert not left_over()


async def test_the_outcome_says_how_a_program_ended(box):
    assert (await ended(box, "print(input()[::-1])", stdin=b"abc\n")).stdout == b"cba\n"
    assert (await ended(box, "raise SystemExit(7)")).code == 7
    assert (await ended(box, "import os; os.kill(os.getpid(), 15)")).code == -signal.SIGTERM
    assert (await ended(box, "import os; os._exit(250)")).code == 250
    outcome = await ended(box, "1 / 0")
    assert (outcome.code, outcome.limit) == (1, "")
    assert b"ZeroDivisionError" in outcome.stderr


async def test_what_a_program_has_started_ends_with_it(box):
    token = f"left-{uuid.uuid4().hex}"
    source = (
        "import os, sys\n"
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
        f"    os.execv('/bin/sleep', [{token!r}, '9000'])\n  os._exit(0)\n"
        "os.wait()"
    )
    assert (await ended(box, source)).code == 0
    assert not with_words(token)


async def test_a_program_that_nobody_waits_for_is_ended(box):
    token = f"cancelled-{uuid.uuid4().hex}"
    task = asyncio.create_task(ended(box, SLEEPER.format(token=token)))
    over = asyncio.create_task(gone(await begun(token)))
    task.cancel()
    await over
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_killed_watcher_is_no_verdict_and_leaves_nothing(box):
    token = f"unwatched-{uuid.uuid4().hex}"
    task = asyncio.create_task(ended(box, SLEEPER.format(token=token)))
    over = asyncio.create_task(gone(await begun(token)))
    assert box._warden is not None
    box._warden.kill()
    with pytest.raises(SandboxBroken, match="was killed"):
        await task
    await over
    assert (await ended(box, "print(1)")).stdout == b"1\n", "the next program has a watcher again"


async def test_programs_end_with_who_asked_for_them(box, tmp_path):
    token = f"orphan-{uuid.uuid4().hex}"
    script = (
        "import asyncio\nfrom workers.sandbox.chosen_box import open_box\n"
        "from workers.sandbox.job import Job\n"
        "async def main():\n"
        f"  box = await open_box({box.backend!r})\n"
        f"  await box.run(Job('run', {{'source': {SLEEPER.format(token=token)!r}}}))\n"
        "asyncio.run(main())"
    )
    (tmp_path / "ask.py").write_text(script)  # so that no command line but the sleeper's has the words
    asker = await asyncio.create_subprocess_exec(
        sys.executable, tmp_path / "ask.py", env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    try:
        over = asyncio.create_task(gone(await begun(token)))
    finally:
        asker.kill()
        await asker.wait()
    await over


HELD = "import os; held = [d for d in range(512) if os.path.lexists(f'/proc/self/fd/{d}')]\n"
FORGER = """
import json, os
said = json.dumps({'code': 0, 'limit': '', 'cpu_s': 0, 'wall_s': 0, 'peak_mb': 0, 'waited_s': 0,
    'lengths': [6, 0]}).encode()
for descriptor in range(3, 512):
    try: os.write(descriptor, len(said).to_bytes(4, 'big') + said + b'forged')
    except OSError: pass
os._exit(7)
"""


async def test_a_program_holds_no_descriptor_on_which_its_verdict_is_answered(box):
    assert (await ended(box, HELD + "print(held)")).stdout == b"[0, 1, 2]\n"
    outcome = await ended(box, FORGER)
    assert (outcome.code, outcome.stdout) == (7, b"")


async def test_of_two_programs_that_talk_each_holds_one_end_and_nothing_else(box):
    orders = {"kind": "asserts", "tests": ["assert f() == [0, 1, 2, 4], f()"], "setup": "", "entry": ""}
    serve = Job("serve", {"source": f"{HELD}def f(): return held"})
    led, _ = await box.run_pair(Job("ask", orders), serve)
    assert b'"passed": true' in led.stdout, led


ESCAPES = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
done = []
def attempt(name, what):
    try:
        if what() not in (None, False, -1):
            done.append(name)
    except Exception:
        pass
def read(path): return lambda: open(path, 'rb').read(1)
def write(path): return lambda: open(path, 'w').write('x')
for path in {hidden!r}: attempt('read ' + path, read(path))
for path in ('/x', '/box/begin.py', '/usr/x', '/etc/x', '/dev/x', '/proc/sys/kernel/hostname', '/sys/x'):
    attempt('write ' + path, write(path))
for family in (socket.AF_INET, socket.AF_INET6):
    attempt('network', lambda: socket.socket(family).connect_ex(({address!r}, {port})) == 0)
for family in (16, 17, 38, 40): attempt(f'family {{family}}', lambda: socket.socket(family, socket.SOCK_RAW))
attempt('root', lambda: os.setuid(0) or os.getuid() == 0)
attempt('unshare', lambda: libc.unshare(0x10000000) == 0)
attempt('mount', lambda: libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) == 0)
attempt('memfd', lambda: libc.memfd_create(b'x', 0) >= 0)
for call in (libc.shmget, libc.semget): attempt(call.__name__, lambda: call(0, 1 << 10, 0o1600) >= 0)
attempt('ptrace', lambda: libc.ptrace(16, 1, 0, 0) == 0)
attempt('kill', lambda: os.kill(1, 9) or True)
attempt('capabilities', lambda: int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16) != 0)
attempt('processes', lambda: any(int(p) > 64 for p in os.listdir('/proc') if p.isdigit()))
attempt('raise a limit', lambda: __import__('resource').setrlimit(9, (-1, -1)) or True)
attempt('environment', lambda: 'STALEFLOW_SECRET' in os.environ)
attempt('environment of 1', lambda: b'SECRET' in open('/proc/1/environ', 'rb').read())
print(done)
"""


async def test_no_attempt_to_leave_bubblewrap_succeeds(bubblewrap, tmp_path, monkeypatch):
    monkeypatch.setenv("STALEFLOW_SECRET", "key")
    secret = tmp_path / "server.key"
    secret.write_text("secret")
    secret.chmod(0o644)
    hidden = [
        str(secret),
        "/etc/passwd",
        "/etc/shadow",
        str(Path(__file__)),
        "/var/log/dpkg.log",
        "/proc/1/mem",
    ]
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    address, port = server.sockets[0].getsockname()[:2]
    async with server:
        source = ESCAPES.format(hidden=hidden, address=address, port=port)
        outcome = await ended(bubblewrap, source)
    assert outcome.stdout.decode().strip() == "[]", outcome


async def test_a_program_that_fills_all_that_it_can_write_fills_only_its_folder(bubblewrap):
    source = (
        "import os\nsize = 0\n"
        "for folder in ('/', '/tmp', '/dev', '/dev/shm', '/box', '/proc', '/usr', '/var/tmp', '/run'):\n"
        "  try:\n"
        "    for number in range(64):\n"
        "      name = f'{folder}/{folder[-3:].strip(\"/\")}{number}'\n"
        "      size += open(name, 'wb', buffering=0).write(bytes(1 << 19))\n"
        "  except OSError: pass\n"
        "print(size)"
    )
    outcome = await ended(bubblewrap, source)
    assert 0 < int(outcome.stdout) <= SMALL["file_mb"] << 20, outcome


async def test_bubblewrap_that_disappears_is_no_verdict(bubblewrap, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxBroken, match="apt-get install bubblewrap"):
        await ended(bubblewrap, "print(1)")
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxBroken, match=r"before it had started the program, and said: No permissions"):
        await ended(bubblewrap, "print(1)")


async def test_auto_never_means_limits(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"(?s)apt-get install bubblewrap.*limits` has to be written by hand"
    ):
        await open_box("auto")


async def test_who_runs_alone_waits_for_the_others_and_they_for_it(bubblewrap):
    source = "import time; print(time.monotonic()); time.sleep(0.05); print(time.monotonic())"
    job = Job("run", {"source": source})
    outcomes = await asyncio.gather(
        bubblewrap.run(job), bubblewrap.run(job), bubblewrap.run(job, is_alone=True), bubblewrap.run(job)
    )
    spans = [[float(line) for line in outcome.stdout.split()] for outcome in outcomes]
    alone = spans.pop(2)
    assert all(end < alone[0] or begin > alone[1] for begin, end in spans)
