"""The keys that a folder admits at this moment.

Invariants:
- The key in a file that was removed is no longer admitted from the next look on.
- A file system that fails for a moment revokes no key: while the folder cannot be read, its keys stay
  admitted for UNREAD_S, or for AWAY_S if the folder is not there at all, and no longer.
"""

import os
import re
import time
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

from pydantic import Field, ValidationError

from protocol.messages import Role
from protocol.settings import Section

ROLES: tuple[Role, ...] = get_args(Role)
RACY_NS = 2_000_000_000  # a folder that changed this recently may change again with the same time of change
CLOCKS_NS = 3_600_000_000_000  # by which a file server's clock and ours may differ
UNREAD_S = 300  # a file that cannot be read for so long counts as removed
AWAY_S = 10  # so does a folder that is missing; a file server shows it again sooner
RESERVED = re.compile(r"local|server|trainer|(rollout|reward|agent)-\d+")  # names of the run's own processes
Key = Annotated[str, Field(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]  # 32 bytes as Z85


class Grant(Section):
    """One key that is admitted."""

    name: str
    roles: tuple[Role, ...]
    public: Key


class _Failure(NamedTuple):
    """Looks at the folder that failed one after the other."""

    since_ns: int
    away_ns: int | None  # since when the folder is not there


class GrantFolder:
    """Files NAME.json, one Grant in each."""

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        """What the last look could not read, in a sentence; empty if it has read all."""
        self.lost = ""
        """Why the folder admits nobody any more, in a sentence; empty while it can be looked at."""
        self.reads = 0
        """Times that whom it admits may have changed."""
        self._folder = folder
        self._found: dict[str, Grant | None] = {}  # by file
        self._by_key: dict[str, Grant] = {}
        self._changed_ns = 0  # of the folder when it was read last, by the clock of its file server
        self._first_ns = self._read_ns = 0  # when that was seen first, and when it was read, by ours
        self._failure: _Failure | None = None
        self._unread_ns: dict[str, int] = {}  # since when a file cannot be read
        self._told = ""  # of the problems

    def get(self, public: str) -> Grant | None:
        """What the key with this public half may be, as of the last look; None if it is not admitted."""
        return self._by_key.get(public)

    def refresh(self) -> bool:
        """Look at the folder; returns whether it may admit other keys than before."""
        now_ns = time.monotonic_ns()
        try:
            if not self._may_have_changed(self._folder.stat().st_mtime_ns, now_ns):
                return False
            files = [name for name in os.listdir(self._folder) if name.endswith(".json")]
        except OSError as error:
            return self._fail(error, now_ns)
        self._read_ns, self._failure, self.problem, self.lost = now_ns, None, "", ""
        unread_ns, self._unread_ns = self._unread_ns, {}
        self._found = {name: self._read(name, unread_ns.get(name, now_ns), now_ns) for name in files}
        self._by_key = {grant.public: grant for grant in self._found.values() if grant is not None}
        self.reads += 1
        return True

    def untold(self) -> str:
        """The problem of the last look, for people; empty if there is none, or it was told already."""
        if self.problem in ("", self._told):
            return ""
        self._told = self.problem
        return f"{self.problem} Whom it admitted stays for {UNREAD_S} s, {AWAY_S} s where the folder is gone."

    def _may_have_changed(self, changed_ns: int, now_ns: int) -> bool:
        if changed_ns == self._changed_ns:
            return self._read_ns - self._first_ns <= RACY_NS
        is_old = time.time_ns() - changed_ns > CLOCKS_NS
        self._changed_ns, self._first_ns = changed_ns, now_ns - is_old * (RACY_NS + 1)
        return True

    def _read(self, name: str, unread_ns: int, now_ns: int) -> Grant | None:
        """What a file grants; if it cannot be read, what it granted before."""
        try:
            grant = Grant.model_validate_json((self._folder / name).read_bytes())
        except ValidationError:  # half written
            return None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # removed since, or no file
            return None
        except OSError as error:
            self._changed_ns = 0  # the next look reads again
            self._unread_ns[name] = unread_ns
            self.problem = f"{self._folder / name} cannot be read: {error.strerror}."
            return self._found.get(name) if now_ns - unread_ns < UNREAD_S * 10**9 else None
        return grant if f"{grant.name}.json" == name and not RESERVED.fullmatch(grant.name) else None

    def _fail(self, error: OSError, now_ns: int) -> bool:
        """Note that the folder cannot be read: after a while it admits no key any more."""
        self._changed_ns = 0  # when it can be, it is read whatever its time says
        since_ns, away_ns = self._failure or _Failure(now_ns, None)
        is_away = isinstance(error, FileNotFoundError | NotADirectoryError)
        away_ns = (now_ns if away_ns is None else away_ns) if is_away else None
        self._failure = _Failure(since_ns, away_ns)
        self.problem = f"{self._folder} cannot be read: {error.strerror}."
        is_gone = away_ns is not None and now_ns - away_ns >= AWAY_S * 10**9
        if not is_gone and now_ns - since_ns < UNREAD_S * 10**9:
            return False
        self.lost = f"The keys in {self._folder} have not been readable for {(now_ns - since_ns) // 10**9} s."
        self._found, self._by_key = {}, {}
        self.reads += 1
        return True
