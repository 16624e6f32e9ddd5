"""Requests to an OpenAI-compatible endpoint, for the reward `judge` and for an evaluation without a run.

Invariant: errors that a retry may mend are told apart from those that no retry mends.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2

AGAIN = frozenset((408, 409, 425, 429))  # and 5xx
MAX_SHOWN = 300  # characters of an endpoint's answer


class Trouble(Exception):
    """An error that a retry may mend; the text is for the user, `wait_s` from the endpoint."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class NoAddress(Exception):
    """The address cannot be requested; the text says why, and what to do."""


class EndpointReply(NamedTuple):
    """A response with a status that is not worth a retry."""

    response: httpx2.Response
    shown: str  # its status and the beginning of its text, for the user


def client(**options: Any) -> httpx2.AsyncClient:
    """An httpx2 client without time limits: its own limit counts from byte to byte."""
    return httpx2.AsyncClient(timeout=None, **options)


async def ask(
    by: httpx2.AsyncClient, url: str, body: Mapping[str, Any], key: str, *, within_s: float, limit: str = ""
) -> EndpointReply:
    """The answer to one request, complete within `within_s` seconds; `limit` names that limit in errors.

    Raises: Trouble; NoAddress.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with asyncio.timeout(within_s):
            response = await by.post(url, json=body, headers=headers)
    except TimeoutError:
        named = f"`{limit}` = " if limit else ""
        raise Trouble(f"the request took longer than {named}{within_s:g} s") from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise NoAddress(f"{error} Expected http://HOST:PORT/v1 or https://.") from None
    except httpx2.HTTPError as error:
        if (refused := _certificate_error(error)) is not None:
            raise NoAddress(
                f"Its TLS certificate is not trusted here: {refused.verify_message}. Expected one of a known "
                "authority, for this very host name; name the file of your own authority in SSL_CERT_FILE."
            ) from None
        raise Trouble(f"the request ended with {type(error).__name__} {error}".rstrip(" .")) from None
    shown = f"it answered {response.status_code}: {' '.join(response.text.split())[:MAX_SHOWN]}"
    if response.status_code in AGAIN or response.status_code >= 500:
        raise Trouble(shown, _retry_after(response.headers.get("Retry-After")))
    return EndpointReply(response, shown)


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The certificate error that caused this error, if any."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _retry_after(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # a date: our own pause does as well
