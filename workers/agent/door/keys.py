"""Keys of episodes: which episode a request speaks for.

Invariants: a key is good for one episode, and for nothing after its end; none can be guessed or made, and
that one has been made here is known without keeping those of the past.
"""

import hmac
import secrets

from workers.agent.door.refusal import DoorRefusal

PREFIX = "sk-episode-"
MAC_CHARS = 32


class EpisodeKeys:
    """The keys of the episodes that run."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._numbers: dict[str, int] = {}
        self._keys: dict[int, str] = {}

    def issue(self, number: int) -> str:
        """The key of another episode."""
        name = secrets.token_hex(16)
        key = f"{PREFIX}{name}{self._mac(name)}"
        self._numbers[key], self._keys[number] = number, key
        return key

    def revoke(self, number: int) -> None:
        """Its episode is over."""
        if (key := self._keys.pop(number, None)) is not None:
            del self._numbers[key]

    def number_of(self, authorization: str) -> int:
        """The episode that a header names. Raises: DoorRefusal."""
        kind, _, key = authorization.partition(" ")
        return self.number_of_key(key.strip() if kind.lower() == "bearer" else "")

    def number_of_key(self, key: str) -> int:
        """The episode of a key. Raises: DoorRefusal."""
        number = self._numbers.get(key)
        if number is not None:
            return number
        name = key.removeprefix(PREFIX)[:-MAC_CHARS]
        if hmac.compare_digest(key.encode(), f"{PREFIX}{name}{self._mac(name)}".encode()):
            raise episode_over()
        raise DoorRefusal(
            401, "The API key is none of an episode that runs here. Use policy.api_key, OPENAI_API_KEY as "
            "it was set for the program, or the `base_url` that the function was given.",
            code="invalid_api_key",
        )  # fmt: skip

    def _mac(self, name: str) -> str:
        return hmac.digest(self._secret, name.encode("utf-8", "replace"), "sha256").hex()[:MAC_CHARS]


def episode_over() -> DoorRefusal:
    """What is said to whoever asks for an episode that has ended."""
    return DoorRefusal(410, "The episode of this API key is over; nothing is answered in it any more.",
                       code="episode_over")  # fmt: skip
