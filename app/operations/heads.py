"""Where claims of a queue begin: past the places that earlier claims have emptied.

A row that was leased leaves a dead entry in the index until vacuum comes by, and under an old snapshot
(a long report, a forgotten session) for as long as that lasts. A claim from the top steps over all of them.
So a process remembers, for a queue it has leased many jobs of, the place of the last one, and begins there.

What lies before a remembered head is not lost:

- a job of a more urgent priority is looked for by the claim itself (store.leases);
- one that this process puts before it (a retry, a release, an edit, a late commit) makes it forget the head;
- one that another replica puts before it is found by the next claim from the top, at the latest after
  TOP_SECONDS, or after fifty times what such a claim takes where that is more.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.store.leases import Place

TOP_SECONDS = 0.1
# Claims from the top take at most one part in so many of the time.
_SHARE = 50
# Before so many jobs were leased there is not much to step over.
WORTH_JOBS = 500
_MAX_QUEUES = 10_000


@dataclass(slots=True)
class _Queue:
    job_count: int = 0
    head: Place | None = None
    valid_until: float = 0.0
    # What the last claim took last, and the first place that was filled since.
    last: Place | None = None
    first_placed: Place | None = None
    # Grows when a place before ``last`` is filled, or one that is not known.
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where one claim begins, and when it did."""

    heads: Mapping[str, Place]
    generations: Mapping[str, int]
    at: float


class Heads:
    """The heads of the queues that this process leases from; the ones longest unused are forgotten."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    def begin(self, names: Iterable[str], *, at_top: bool = False) -> Beginning:
        """Return where a claim of these queues may begin; where no head is known it begins at the top."""
        now = self._clock()
        known = {name: queue for name in names if (queue := self._queues.get(name)) is not None}
        heads = {
            name: queue.head
            for name, queue in known.items()
            if queue.head is not None and now < queue.valid_until and not at_top
        }
        return Beginning(heads, {name: queue.generation for name, queue in known.items()}, now)

    def claimed(self, beginning: Beginning, name: str, taken: Sequence[Place], *, is_filled: bool) -> None:
        """Note what a claim took from a queue; ``is_filled`` False: there was less than it was to take."""
        queue = self._queues.pop(name, None) or _Queue()
        queue.job_count += len(taken)
        queue.head = None
        if taken:
            queue.last = max(taken)
        if (
            is_filled
            and queue.job_count >= WORTH_JOBS
            and not self._is_overtaken(queue, beginning, name, taken)
        ):
            queue.head = queue.last
        queue.first_placed = None
        if name not in beginning.heads:
            now = self._clock()
            queue.valid_until = now + max(TOP_SECONDS, _SHARE * (now - beginning.at))
        if queue.job_count:
            self._queues[name] = queue
        if len(self._queues) > _MAX_QUEUES:
            self._queues.popitem(last=False)

    @staticmethod
    def _is_overtaken(queue: _Queue, beginning: Beginning, name: str, taken: Sequence[Place]) -> bool:
        """Tell whether a job was put before the last of ``taken`` which the claim may not have seen."""
        if queue.generation != beginning.generations.get(name, 0):
            return True
        first = queue.first_placed
        return first is not None and first < max(taken) and first not in taken

    def placed(self, name: str, place: Place | None = None) -> None:
        """Note a job that was put into a queue; ``place`` is None where its place is not known."""
        queue = self._queues.get(name)
        if queue is None:
            return
        if place is None or (queue.last is not None and place < queue.last):
            queue.head = None
            queue.generation += 1
        elif queue.first_placed is None or place < queue.first_placed:
            queue.first_placed = place
