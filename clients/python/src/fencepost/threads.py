"""Threads that are reused, and that hold nobody up.

Those of concurrent.futures are joined when the interpreter ends: a handler that cannot be stopped would keep
the process alive after its job has been given back.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """As many daemon threads as calls have ever run at once. Calls come from one thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def call(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, in a thread."""
        self._calls.put(function)
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(target=self._run, name=f"fencepost-handler-{self._count}", daemon=True).start()

    def close(self) -> None:
        """Let the threads end once they are idle."""
        for _ in range(self._count):
            self._calls.put(None)

    def _run(self) -> None:
        while (function := self._calls.get()) is not None:
            function()
            # Nothing of the last job is kept while the thread waits for the next.
            del function
            self._idle.release()
