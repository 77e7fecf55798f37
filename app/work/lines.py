"""A stream cut into lines, in bounded memory."""

from collections.abc import Iterator


class Lines:
    """Takes a stream in pieces. Of a line longer than the limit nothing is kept but that there was one."""

    def __init__(self, longest_bytes: int) -> None:
        self._longest_bytes = longest_bytes
        self._rest = bytearray()
        self._is_too_long = False

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield each line that ends in the chunk, without its end; None stands for one that is too long."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._add(piece)
            yield self._take()
        self._add(rest)

    def end(self) -> Iterator[bytes | None]:
        """Yield the rest of a stream that stopped within a line."""
        if self._rest or self._is_too_long:
            yield self._take()

    def _add(self, piece: bytes) -> None:
        if self._is_too_long or len(self._rest) + len(piece) > self._longest_bytes:
            self._is_too_long = True
            self._rest.clear()
        else:
            self._rest += piece

    def _take(self) -> bytes | None:
        line = None if self._is_too_long else bytes(self._rest)
        self._rest.clear()
        self._is_too_long = False
        return line
