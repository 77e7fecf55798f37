"""FastAPI behind a door of our own."""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send


class Application(FastAPI):
    """An application whose requests come in by ``door``, which is FastAPI's own unless another is set."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.door: ASGIApp = self.behind_the_door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.door(scope, receive, send)

    async def behind_the_door(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be FastAPI."""
        await super().__call__(scope, receive, send)
