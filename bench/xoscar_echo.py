"""The actor that xoscar's part of bench.actors measures."""

import xoscar as xo


class XoscarEcho(xo.Actor):
    async def ping(self, x: int) -> int:
        return x
