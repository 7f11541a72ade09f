"""Random heads, trailers and paths on real sockets: no 5xx, no hang, no memory, no operator route."""

import asyncio
import random
import re

from tests.attacks.conftest import Target
from tests.attacks.target import TOKENS

CASES, CONCURRENT = 150, 50
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"TRACE", b"get", b"", b"\x00", b"PRI", b"CONNECT"]
_PATHS = [
    *(b"/", b"*", b"", b"/livez", b"//debug/vars", b"/%2e%2e/debug/vars", b"/\x80", b"/%", b"/%zz", b"/%00"),
    *(b"http://a/debug/vars", b"/a b", b"/api/workloads/%2f/trainingPerformance", b"/" + b"a" * 9000),
    *(b"/../" * 500, b"/api/healthz?" + b"&a=b" * 1000, b"/echo", b"/metrics/", b"/api/events"),
]
_VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.9", b"http/1.1", b"", b"HTTP/1.1 x"]
_FIELDS = [
    *(
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 5, 6",
        b"Content-Length: 99999999999999999999",
    ),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding : chunked", b" folded", b":", b"X", b"X: \x00", b"X: \x80\xff", b"\xff: x"),
    *(b"Connection: close", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Host: b"),
    *(b"Expect: 100-continue", b"Origin: null", b"Content-Type: text/plain", b"Cookie: " + b"a=b;" * 500),
    *(
        b"Authorization: Bearer x",
        b"Authorization: " + b"a" * 9000,
        b"X-Forwarded-For: 1.2.3.4",
        b"Range: bytes=0-",
    ),
    *(
        b"Accept-Encoding: gzip;q=nan",
        b"Accept: " + b"text/csv," * 500,
        b"traceparent: 00-x",
        b"If-None-Match: *",
    ),
]
_BODIES = [
    *(
        b"",
        b"[1,2]",
        b"5\r\n[1,2]\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\nAuthorization: Bearer x\r\n\r\n",
    ),
    *(
        b"5;ext=" + b"a" * 5000 + b"\r\n[1,2]\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"-1\r\n",
        b"0\r\n" + b"X: y\r\n" * 9000,
    ),
    *(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01" * 100, b"\r\n" * 1000),
]


def _request(rng: random.Random) -> bytes:
    fields = [b"Host: a", *rng.sample(_FIELDS, rng.randint(0, 5))]
    if rng.random() < 0.3:
        fields.append(b"Authorization: Bearer " + TOKENS.issue("a").encode())
    rng.shuffle(fields)
    line = b" ".join(
        (
            rng.choice(_METHODS[:2] * 5 + _METHODS),
            rng.choice(_PATHS),
            rng.choice(_VERSIONS[:1] * 6 + _VERSIONS),
        )
    )
    request = b"\r\n".join((line, *fields, b"", rng.choice(_BODIES)))
    if rng.random() < 0.2:
        position = rng.randrange(len(request))
        request = request[:position] + rng.randbytes(rng.randint(1, 4)) + request[position:]
    return request


async def test_random_requests_are_answered_or_refused(target: Target) -> None:
    rng = random.Random(18)
    slots = asyncio.Semaphore(CONCURRENT)

    async def check(request: bytes) -> None:
        async with slots:
            answer = await target.converse(request)
        statuses = [int(each) for each in _STATUS.findall(answer)]
        assert all(status < 500 for status in statuses), (request[:300], answer[:300])
        assert b"rss_bytes" not in answer
        assert b"Traceback" not in answer

    async with target.watched(), asyncio.TaskGroup() as group:
        for _ in range(CASES):
            group.create_task(check(_request(rng)))


async def test_another_forwarded_address_does_not_evade_the_limit_on_wrong_tokens(api: Target) -> None:
    statuses = []
    for number in range(25):
        head = b"GET /api/clusters/rows HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer wrong\r\n"
        answer = await api.exchange(head + b"X-Forwarded-For: 10.0.0.%d\r\n\r\n" % number)
        statuses.append(answer[9:12])
    assert statuses[-5:] == [b"429"] * 5
