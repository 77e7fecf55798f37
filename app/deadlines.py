"""How long a client may take for its part of a call, all of it in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds.

    ``head_seconds``   from the opening of the connection, or a later request's first byte, to the end of
                       the request's head
    ``body_seconds``   from the end of the head to the end of the body; then the answer is 408
    ``grace_seconds``  after these, for a body that nobody waits for any more
    ``unread_seconds`` that an answer may lie without the client taking any of it
    """

    head_seconds: float = 20.0
    body_seconds: float = 30.0
    grace_seconds: float = 5.0
    unread_seconds: float = 60.0


DEADLINES = Deadlines()
