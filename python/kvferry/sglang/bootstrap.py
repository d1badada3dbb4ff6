"""The bootstrap server of a prefill server: SGLang's routes and kvferry's registry at one port.

SGLang's scheduler asks SGLang's own routes (/route, /register_dp_rank, /query_dp_ranks, /health) by
functions that no backend replaces, and fleets know one bootstrap port. So SGLang's server stays, and
/v1/ranks is handed on to a kvferry.BootstrapServer of this process on a loopback port. Requests there
are signed with the cluster token over method, target and body, which are handed on unchanged.

Threads: SGLang's server has one of its own, so that its constructor returns at once.
"""

import logging
import os

import aiohttp
import kvferry
from aiohttp import web
from sglang.srt.disaggregation.base.conn import BaseKVBootstrapServer
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

from kvferry.sglang.layout import Refused

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "KVFERRY_CLUSTER_TOKEN_FILE"
PATHS = ("/v1/ranks", "/livez", "/readyz", "/metrics")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECONDS = 5
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host",
               "content-length", "content-encoding"}


class _Routes(CommonKVBootstrapServer):
    """SGLang's server with the registry's paths."""

    def __init__(self, host: str, port: int, registry: str) -> None:
        self._registry = registry
        self._client: aiohttp.ClientSession | None = None
        super().__init__(host, port)

    def _setup_routes(self) -> None:
        super()._setup_routes()
        for path in PATHS:
            self.app.router.add_route("*", path, self._hand_on)
        self.app.on_cleanup.append(self._close_client)

    async def _close_client(self, _app: web.Application) -> None:
        if self._client is not None:
            await self._client.close()

    async def _hand_on(self, request: web.Request) -> web.Response:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                auto_decompress=False, timeout=aiohttp.ClientTimeout(total=_SECONDS))
        headers = {name: each for name, each in request.headers.items()
                   if name.lower() not in _HOP_BY_HOP}
        try:
            async with self._client.request(
                    request.method, f"http://{self._registry}{request.raw_path}",
                    headers=headers, data=await request.read()) as answer:
                kept = {name: each for name, each in answer.headers.items()
                        if name.lower() not in _HOP_BY_HOP}
                return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        except (aiohttp.ClientError, TimeoutError) as error:
            return web.Response(status=502, text=f"the registry does not answer: {error}")


class KvferryKVBootstrapServer(BaseKVBootstrapServer):
    """Not a subclass of SGLang's: where SGLang has a server in Rust that stands in for its own, it
    must not stand in for this one."""

    def __init__(self, host: str, port: int) -> None:
        """host: address to bind; port: SGLang's bootstrap port.

        Raises Refused when the host is not a loopback address and there is no cluster token: whoever
        reaches the port could register ranks and be sent KV pages."""
        token_file = os.environ.get(TOKEN_VARIABLE, "")
        if not token_file and host not in LOOPBACK:
            raise Refused(
                f"the bootstrap server would listen on {host}:{port} without a cluster token, and "
                f"whoever reaches it could register: set {TOKEN_VARIABLE} to a file with a secret, "
                "the same on all servers of the fleet, or bind --host 127.0.0.1")
        self._registry = kvferry.BootstrapServer(
            kvferry.BootstrapServerOptions(cluster_token_file=token_file))
        self._routes = _Routes(host, port, self._registry.address())
        logger.info("bootstrap server of kvferry at %s:%d", host, port)

    def close(self) -> None:
        self._routes.close()
        self._registry.stop()
