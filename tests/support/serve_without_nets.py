"""The service without what finds lost wake-ups: ``python -m tests.support.serve_without_nets``, then options.

A poll that is not woken waits until its time is over. Where wake-ups are tested nothing has to be quick then:
what was found at all was woken.
"""

from app.__main__ import main
from app.operations import polls, wakeups

if __name__ == "__main__":
    polls.FALLBACK_SECONDS = 3600.0
    wakeups.ANNOUNCE_SECONDS = 3600.0
    wakeups.FORGET_SECONDS = 3 * wakeups.ANNOUNCE_SECONDS
    main()
