"""From a method and a path to the route that takes them, before FastAPI is asked.

FastAPI knows the same routes: it writes the document, and answers what fits none of them (404, 405), its own
pages included. To find a route it would try one pattern after the other, and hand each request through a
stack of layers that this service has no use for; together that cost more than all of the service's own work.
"""

from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.routing import Routes

# What answers a path, by method.
Methods = dict[str, ASGIApp]


class Dispatcher:
    """Hands a request to its route, and every other one to ``otherwise``.

    A path without parameters goes before one that has one, also when it does not take the method: PATCH
    /v1/jobs/batch is no job's.
    """

    def __init__(self, modules: Iterable[Routes], *, otherwise: ASGIApp) -> None:
        self._otherwise = otherwise
        self._plain: dict[str, Methods] = {}
        # Paths with one parameter, without it; by the number of its steps, which of them it is, and its name.
        self._around: dict[str, Methods] = {}
        self._parameters: dict[int, dict[int, str]] = {}
        for routes in modules:
            for method, path, app in routes.apps:
                self._add(path).setdefault(method, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._find(scope) if scope["type"] == "http" else None
        await (app or self._otherwise)(scope, receive, send)

    def _add(self, path: str) -> Methods:
        """Return the methods of a new or known path."""
        steps = path.split("/")
        places = [place for place, step in enumerate(steps) if step.startswith("{")]
        if not places:
            return self._plain.setdefault(path, {})
        (place,) = places
        self._parameters.setdefault(len(steps), {})[place] = steps[place].strip("{}")
        steps[place] = ""
        return self._around.setdefault("/".join(steps), {})

    def _find(self, scope: Scope) -> ASGIApp | None:
        """Return the route, its parameter noted in the scope; None where no route fits."""
        path, method = scope["path"], scope["method"]
        methods = self._plain.get(path)
        if methods is not None:
            return methods.get(method)
        steps = path.split("/")
        for place, name in self._parameters.get(len(steps), _NONE).items():
            value, steps[place] = steps[place], ""
            methods = self._around.get("/".join(steps))
            if methods is not None and value:
                scope["path_params"] = {name: value}
                return methods.get(method)
            steps[place] = value
        return None


_NONE: Mapping[int, str] = {}
