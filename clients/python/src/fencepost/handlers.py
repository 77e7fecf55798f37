"""Which function does which kind of job, and where it runs."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeVar

from fencepost.job import AsyncJob, Job

Function = Callable[[Job], object] | Callable[[AsyncJob], Awaitable[object]]
FunctionType = TypeVar("FunctionType", bound=Function)

Room = Literal["loop", "thread", "process"]


class Handler(NamedTuple):
    """A function and the room that it runs in."""

    function: Function
    room: Room


class Handlers:
    """Handlers by kind, and one for all other kinds if there is one."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler] = {}
        self._other: Handler | None = None

    def add(self, kind: str | None, function: Function, *, process: bool) -> None:
        """Add the handler of a kind; None: of all kinds that have none. Each has one."""
        handler = Handler(function, _room(function, process=process))
        if kind is None:
            if self._other is not None:
                raise ValueError("there is a handler for all other kinds already")
            self._other = handler
        elif kind in self._by_kind:
            raise ValueError(f"there is a handler for {kind} already")
        else:
            self._by_kind[kind] = handler

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self._by_kind) or self._other is not None

    def find(self, kind: str) -> Handler | None:
        """Return the handler of a kind; None without one."""
        return self._by_kind.get(kind, self._other)


def _room(function: Function, *, process: bool) -> Room:
    is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    )
    if not process:
        return "loop" if is_coroutine else "thread"
    name = getattr(function, "__qualname__", "")
    if is_coroutine:
        raise ValueError(f"{name}: a handler in a process is a plain function")
    if not name or "<" in name:
        raise ValueError(
            "a handler in a process is found by its name: define it in a module, not inside a function"
        )
    return "process"
