"""Download the FOCUS file of a month from a gpufleet server."""

from pathlib import Path

import aiohttp

from gpufleet.errors import InvalidRequest, Unavailable

PATH = "/api/v1/gpu-aggregation/focus"
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)


async def download(server: str, token: str, month: str, cluster: str, target: Path) -> None:
    """Write the file to `target`; raise an error with what the server said if there is none."""
    params = {"period": month, **({"cluster": cluster} if cluster else {})}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    address = server.rstrip("/") + PATH
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(address, params=params, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status == 200:
                with target.open("wb") as file:
                    async for chunk in answer.content.iter_chunked(1024 * 1024):
                        file.write(chunk)
                return
            said = (await answer.text())[:300]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"{server} does not answer: {error}") from error
    kind = Unavailable if answer.status >= 500 else InvalidRequest
    raise kind(f"{server} answered with status {answer.status}: {said}")
