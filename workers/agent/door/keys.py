"""The API keys of episodes, which tell to which episode a request belongs.

Invariants: a key is valid for one episode, until its end; keys cannot be guessed or forged, and expired ones
are recognized without being stored.
"""

import hmac
import secrets

from workers.agent.door.refusal import DoorRefusal

PREFIX = "sk-episode-"
MAC_CHARS = 32


class EpisodeKeys:
    """The keys of the running episodes."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._numbers: dict[str, int] = {}
        self._keys: dict[int, str] = {}

    def issue(self, number: int) -> str:
        """A new key for an episode."""
        name = secrets.token_hex(16)
        key = f"{PREFIX}{name}{self._mac(name)}"
        self._numbers[key], self._keys[number] = number, key
        return key

    def revoke(self, number: int) -> None:
        """Revoke the key of an episode that is over."""
        if (key := self._keys.pop(number, None)) is not None:
            del self._numbers[key]

    def number_of(self, authorization: str) -> int:
        """The episode of an Authorization header. Raises: DoorRefusal."""
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
    """The refusal for requests to an episode that has ended."""
    return DoorRefusal(410, "The episode of this API key is over; nothing is answered in it any more.",
                       code="episode_over")  # fmt: skip
