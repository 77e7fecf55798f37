"""The service without what finds lost wake-ups: ``python -m tests.support.serve_without_nets``, then options.

A poll that is not woken waits until its time is over. Where wake-ups are tested nothing has to be quick then:
what was found at all was woken.
"""

from app.__main__ import main
from app.background.loops import Loops
from app.operations import wakeups
from app.operations.polls import Polls


async def find_nothing(self: object) -> float:
    """Stand for one pass; it comes again as any other, since readiness looks at that."""
    return 1.0


if __name__ == "__main__":
    Polls.fallback = find_nothing  # type: ignore[method-assign]
    Loops._announce = find_nothing  # type: ignore[method-assign]
    # What is not said again must not be forgotten.
    wakeups.FORGET_SECONDS = 3600.0
    main()
