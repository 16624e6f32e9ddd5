"""Runs one program, watches it, and answers how it ended, in a process that the warden forks for each run.

Invariants: no process of the program is left when the answer is sent, nor when this process is told to end;
the program's output is only text in the answer: it inherits no descriptors but those passed to it, and the
answer's socket is not among them; an answer is about the program only if the sandbox has started it, which is
shown by a byte written before the program's first line runs.
"""

import errno
import fcntl
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from workers.link.descendants import adopt_orphans
from workers.link.parent import die_with_parent
from workers.sandbox import bubblewrap
from workers.sandbox.job import ProgramLimits
from workers.sandbox.usage import all_in, below, proportional_mb, sockets_mb, tasks_of, usage_of, waited_s
from workers.sandbox.users import claim_user, gain_no_privileges

SAMPLE_S = {"bubblewrap": 0.02, "limits": 0.05}
"""Seconds between two samples of usage; under `limits` a sample reads the status of every process."""
CHUNK = 1 << 16
FIRST_DESCRIPTOR = 32  # of copies, above all that a program gets
MOST_SIGNAL = 64
MOST_FILES = 128
MARGIN = 256  # tasks that this user may start meanwhile besides the program
STARTED, CHANNEL, SECCOMP, INFO, FILES = 3, 4, 5, 6, 7
SAID = {
    119: "memory", 118: "file", 117: "processes", -signal.SIGXCPU: "cpu", -signal.SIGXFSZ: "file",
}  # fmt: skip
"""Limits by exit code (as in inside/run.py), and by the kernel's signals."""


class Broken(Exception):
    """The sandbox does not work."""


def supervise(request: dict[str, Any], reply: socket.socket, stdin: int, channel: int) -> None:
    """Run the requested program, and answer; returns when none of its processes is left.

    The answer is a JSON header preceded by its length (4 bytes, big-endian), standard output, standard error.
    """
    run = Run(request, stdin, channel)
    try:
        answer = run.run(reply.fileno())
    except (Broken, OSError) as error:
        answer = {"broken": str(error)}
    finally:
        run.close()
    header = json.dumps(answer | {"lengths": [len(run.stdout), len(run.stderr)]}).encode()
    with suppress(OSError):  # the caller is gone
        reply.sendall(len(header).to_bytes(4, "big") + header + run.stdout + run.stderr)


def within_hard_limits(wanted: dict[str, int]) -> dict[str, int]:
    """The limits that can be set here: fewer open files if this process may have no more.

    Raises: Broken if the hard limit of anything else, which the user has configured, is lower.
    """
    found: dict[str, int] = {}
    for name, most in wanted.items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        if hard != resource.RLIM_INFINITY and most > hard:
            if name != "RLIMIT_NOFILE":
                raise Broken(
                    f"The hard limit {name} is {hard} here, and a program is to have {most}. Raise it "
                    "(ulimit -H), or lower the limits of programs."
                )
            most = hard
        found[name] = most
    return found


class Run:
    """One program, from its start to the end of all its processes."""

    def __init__(self, request: dict[str, Any], stdin: int, channel: int) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._request, self._stdin, self._channel = request, stdin, channel
        self._limits = ProgramLimits(**request["limits"])
        self._is_boxed = request["backend"] == "bubblewrap"
        self._folder = ""
        self._user, self._claim = claim_user()
        self._child, self._status = 0, -1
        self._has_started = self._is_cancelled = False
        self._first = ""
        self._processes = -1  # descriptor of the /proc folder with the program's processes
        self._limit, self._tasks = "", 0
        self._peak_mb = self._cpu_s = self._waited_s = 0.0
        self._begun_s = time.monotonic()

    def run(self, reply: int) -> dict[str, Any]:
        """Run the program; returns the answer. Raises: Broken, OSError."""
        adopt_orphans()
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _noted)
        die_with_parent(self._request["warden"], signal.SIGTERM)
        if not self._is_boxed:
            self._folder = tempfile.mkdtemp(prefix="staleflow-sandbox-")
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "started", "info")}
        self._child = os.fork()
        if not self._child:
            self._become({name: pair[1] for name, pair in pipes.items()})
        for pair in pipes.values():
            os.close(pair[1])
        self._watch({pair[0]: name for name, pair in pipes.items()} | {reader: "signal", reply: "reply"})
        return self._answer()

    def close(self) -> None:
        """Release the resources of the run."""
        self._end_all()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._claim is not None:
            self._claim.close()

    # -- watching ---------------------------------------------------------------------------------------

    def _watch(self, names: dict[int, str]) -> None:
        """Watch until the program has ended, or was ended, and all of its output was read."""
        poll = select.poll()
        for descriptor, name in names.items():
            poll.register(descriptor, select.POLLRDHUP if name == "reply" else select.POLLIN)
        sample_s, due_s = SAMPLE_S[self._request["backend"]], 0.0
        while self._status < 0 and not self._limit and not self._is_cancelled:
            for descriptor, _ in poll.poll(sample_s * 1000):
                if not self._hear(descriptor, names[descriptor]):
                    poll.unregister(descriptor)
            self._reap(os.WNOHANG)
            now_s = time.monotonic()
            if now_s - self._begun_s > self._limits.wall_s:
                self._limit = "wall"
            elif self._has_started and now_s >= due_s and self._status < 0:
                self._sample()
                due_s = time.monotonic() + sample_s
        self._end_all()
        for descriptor, name in names.items():  # all writers have ended: read to the end
            while name not in ("signal", "reply") and self._hear(descriptor, name):
                pass

    def _hear(self, descriptor: int, name: str) -> bool:
        """Read from a descriptor; returns whether there may be more."""
        if name == "reply":
            self._is_cancelled = True
            return False
        data = os.read(descriptor, CHUNK)
        if name == "signal":
            if signal.SIGTERM in data:
                raise Broken(
                    "The process that starts programs in the sandbox was killed. Nothing was scored."
                )
        elif name == "started" and data:
            self._has_started = True
        elif name == "info":
            self._first += data.decode()
        elif name in ("stdout", "stderr"):
            text = self.stdout if name == "stdout" else self.stderr
            room = self._limits.output_bytes - len(text)
            text += data[:room]
            if len(data) > room and not self._limit:
                self._limit = "output"
        return bool(data)

    def _sample(self) -> None:
        if self._processes < 0:
            folder = f"/proc/{json.loads(self._first)['child-pid']}/root/proc" if self._is_boxed else "/proc"
            try:
                self._processes = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # it has ended meanwhile
                return
        processes = all_in(self._processes) if self._is_boxed else below(os.getpid())
        used = usage_of(processes)
        self._tasks = max(self._tasks, used.tasks)
        self._cpu_s = max(self._cpu_s, used.cpu_s)
        resident_mb = used.resident_mb
        if resident_mb > self._limits.memory_mb and len(processes) > 1:  # forked processes share pages
            resident_mb = proportional_mb(self._processes, processes) or resident_mb
        if self._is_boxed and processes:  # in a network of its own
            resident_mb += sockets_mb(self._processes, processes[0][0])
        self._peak_mb = max(self._peak_mb, resident_mb)
        self._waited_s = max(self._waited_s, waited_s(self._processes, processes))
        if resident_mb > self._limits.memory_mb:
            self._limit = "memory"
        elif used.cpu_s > self._limits.cpu_s:
            self._limit = "cpu"
        elif used.tasks > self._limits.processes + 2:  # the first ones of bubblewrap
            self._limit = "processes"

    def _reap(self, options: int) -> bool:
        """Reap all ended processes; returns whether a process is left."""
        while True:
            try:
                ended, status = os.waitpid(-1, options)
            except ChildProcessError:
                return False
            if not ended:
                return True
            if ended == self._child:
                self._status = status

    def _end_all(self) -> None:
        """End all processes; under bubblewrap the first process of the namespace ends the others with it."""
        while self._child and self._reap(os.WNOHANG):
            doomed = [self._child] if self._is_boxed and self._status < 0 else []
            if not self._is_boxed:
                doomed = [int(status[0]) for status in below(os.getpid())]
            for process in doomed:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                ended, status = os.waitpid(-1, 0)
                if ended == self._child:
                    self._status = status

    def _answer(self) -> dict[str, Any]:
        """The outcome, for the answer. Raises: Broken."""
        code = os.waitstatus_to_exitcode(self._status)
        if self._is_boxed and 128 < code <= 128 + MOST_SIGNAL:
            code = 128 - code  # bubblewrap reports a signal as a shell does
        if not self._has_started:
            said = self.stderr.decode(errors="replace").strip()[:500] or "(it said nothing)"
            raise Broken(
                f"The sandbox ({self._request['backend']}) ended with code {code} before it had started the "
                f"program, and said: {said}. Nothing was scored."
            )
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = max(self._cpu_s, used.ru_utime + used.ru_stime)
        limit = self._limit or SAID.get(code, "")
        if not limit and code == -signal.SIGKILL and cpu_s >= self._limits.cpu_s:
            limit = "cpu"
        if not limit and code and self._tasks >= self._limits.processes:
            limit = "processes"
        return {
            "code": code, "limit": limit, "cpu_s": cpu_s, "wall_s": time.monotonic() - self._begun_s,
            "peak_mb": self._peak_mb, "waited_s": self._waited_s,
        }  # fmt: skip

    # -- the child --------------------------------------------------------------------------------------

    def _become(self, pipes: dict[str, int]) -> None:
        """Turn this copy of the process into the program. Never returns."""
        told = pipes["stderr"]
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            gain_no_privileges()
            given = {0: self._stdin, 1: pipes["stdout"], 2: pipes["stderr"], STARTED: pipes["started"]}
            if self._channel >= 0:
                given[CHANNEL] = self._channel
            arguments = self._boxed(given, pipes["info"]) if self._is_boxed else self._unboxed()
            copies = {to: _copy(descriptor) for to, descriptor in given.items()}
            told = copies[2]  # the pipe's own number may be given to something else now
            _close_all_at_exec()
            for to, descriptor in copies.items():
                os.dup2(descriptor, to, inheritable=True)
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execve(arguments[0], arguments, self._environment())
        except BaseException as error:  # nothing of this copy may go on
            os.write(told, f"{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(1)

    def _boxed(self, given: dict[int, int], info: int) -> list[str]:
        given[INFO] = info
        if code := bytes.fromhex(self._request["seccomp"]):
            given[SECCOMP] = _file_of(code)
        files: list[tuple[str, int]] = []
        for number, (name, text) in enumerate(self._files().items(), FILES):
            given[number] = _file_of(text)
            files.append((name, number))
        begin = bubblewrap.command(
            self._request["bwrap"], self._limits, visible=self._request["visible"], files=files,
            seccomp=SECCOMP if SECCOMP in given else -1, info=INFO,
        )  # fmt: skip
        return begin + self._python(bubblewrap.FILES)

    def _unboxed(self) -> list[str]:
        files = f"{self._folder}/files"
        os.mkdir(files)
        for name, text in self._files().items():
            with open(f"{files}/{name}", "wb") as file:
                file.write(text)
        os.chmod(self._folder, 0o711)
        work = f"{self._folder}/work"
        os.mkdir(work)
        if self._user:
            os.chown(work, self._user, self._user)
        os.chdir(work)
        return self._python(files)

    def _python(self, files: str) -> list[str]:
        return [self._request["python"], "-I", "-S", "-B", f"{files}/begin.py", self._request["script"]]

    def _files(self) -> dict[str, bytes]:
        """The files of the program's process, by name: its scripts, and its orders."""
        limits = self._limits
        orders = self._request["orders"] | {
            "user": self._user,
            "paths": self._request["paths"],
            "limits": within_hard_limits(
                {
                    "RLIMIT_NPROC": self._most_tasks(),
                    "RLIMIT_AS": limits.memory_mb << 20,
                    "RLIMIT_CPU": math.ceil(limits.cpu_s),
                    "RLIMIT_FSIZE": limits.file_mb << 20,
                    "RLIMIT_NOFILE": MOST_FILES,
                    "RLIMIT_CORE": 0,
                }
            ),
        }
        texts = self._request["files"] | {"orders.json": json.dumps(orders)}
        return {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}

    def _most_tasks(self) -> int:
        """The kernel's limit of tasks; 0 if it cannot separate one program from others of its user."""
        if self._user:
            return self._limits.processes
        if self._is_boxed:
            has_count = bubblewrap.counts_processes_of_one_program()
            return self._limits.processes + 1 if has_count else 0  # the first process of the namespace
        return tasks_of(os.geteuid()) + self._limits.processes + MARGIN

    def _environment(self) -> dict[str, str]:
        """An environment without this process's own variables, which may hold keys."""
        home = bubblewrap.FOLDER if self._is_boxed else f"{self._folder}/work"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
        return base | threads | {"HOME": home, "TMPDIR": home}


def _copy(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which means that no descriptor may have that number
            raise
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def _close_all_at_exec() -> None:
    """Have the program inherit no descriptors but those passed to it afterwards."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that the list was read from is closed already
            os.set_inheritable(int(name), False)


def _file_of(data: bytes) -> int:
    descriptor = os.memfd_create("staleflow-sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor has the signal's number."""
