"""A typed client of the server's REST API.

    from gpufleet.client import Client

    with Client("http://127.0.0.1:8080") as client:
        print(client.overview().allocated_gpus)
        for node in client.nodes(state="idle"):          # fetches page after page
            print(node.name, node.gpu_model)

`AsyncClient` has the same methods, to `await` or to iterate with `async for`. Without arguments both use the
variables GPUFLEET_SERVER and GPUFLEET_TOKEN or GPUFLEET_TOKEN_FILE. The methods and types are generated from the
server's OpenAPI document. It needs the extra `gpufleet[client]`.
"""

from gpufleet.client.clients import AsyncClient, Client
from gpufleet.client.errors import ApiError, LoginRequired, ServerUnreachable
from gpufleet.client.frames import to_pandas, to_polars

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "LoginRequired",
    "ServerUnreachable",
    "to_pandas",
    "to_polars",
]
