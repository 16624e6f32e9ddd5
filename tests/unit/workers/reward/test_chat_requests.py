"""What another request may make better is told apart from what none would."""

import asyncio
import ssl

import httpx2
import pytest

from workers.reward.chat_requests import NoAddress, Trouble, ask, client

URL = "http://endpoint/v1/chat/completions"


async def asked(answer, *, url=URL, key="", within_s=60.0, limit=""):
    """One request to an endpoint that answers so."""
    async with client(transport=httpx2.MockTransport(answer)) as by:
        return await ask(by, url, {"model": "m"}, key, within_s=within_s, limit=limit)


def answers(status, **headers):
    return lambda request: httpx2.Response(status, text="so\n it is" + "." * 1000, headers=headers)


async def test_an_answer_comes_with_words_for_the_user():
    response, shown = await asked(answers(400))
    assert response.status_code == 400
    assert shown.startswith("it answered 400: so it is...")
    assert len(shown) < 400


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_busy_endpoint_may_be_asked_again(status):
    with pytest.raises(Trouble, match=f"it answered {status}"):
        await asked(answers(status))


@pytest.mark.parametrize(
    ("told", "wait_s"),
    [("2.5", 2.5), ("-1", 0.0), ("nan", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), (None, None)],
)
async def test_an_endpoint_says_how_long_to_wait(told, wait_s):
    with pytest.raises(Trouble) as caught:
        await asked(answers(429, **({} if told is None else {"Retry-After": told})))
    assert caught.value.wait_s == wait_s


async def test_a_limit_is_named_and_an_address_that_is_none_too():
    async def never(request):
        await asyncio.Event().wait()

    with pytest.raises(Trouble, match=r"took longer than `request_s` = 0 s"):
        await asked(never, within_s=0.0, limit="request_s")
    async with client() as by:
        with pytest.raises(NoAddress, match=r"Expected http://HOST:PORT/v1 or https://\."):
            await ask(by, "endpoint/v1", {}, "", within_s=60.0)


async def test_a_key_is_sent_where_there_is_one():
    seen = []

    def answer(request):
        seen.append(request.headers.get("Authorization"))
        return httpx2.Response(200)

    await asked(answer)
    await asked(answer, key="secret")
    assert seen == [None, "Bearer secret"]


async def test_a_certificate_that_is_not_trusted_is_not_asked_again():
    def refuse(request):
        refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
        refused.verify_message = "self-signed certificate"
        try:
            try:
                raise refused
            except ssl.SSLError as error:
                raise OSError("of the pool") from error
        except OSError as error:
            raise httpx2.ConnectError("certificate verify failed") from error

    with pytest.raises(NoAddress, match=r"not trusted here: self-signed certificate\. .*SSL_CERT_FILE\."):
        await asked(refuse)


async def test_an_endpoint_that_is_away_may_be_asked_again():
    def refuse(request):
        raise httpx2.ConnectError("All connection attempts failed")

    with pytest.raises(Trouble, match="All connection attempts failed"):
        await asked(refuse)
