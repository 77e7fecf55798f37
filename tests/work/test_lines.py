from hypothesis import given
from hypothesis import strategies as st

from app.work.lines import Lines


def _lines(chunks: list[bytes], *, longest_bytes: int) -> list[bytes | None]:
    lines = Lines(longest_bytes)
    return [line for chunk in chunks for line in lines.feed(chunk)] + list(lines.end())


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"\x07", b"\n"))))
def test_a_stream_is_cut_at_its_line_ends_wherever_its_pieces_end(chunks: list[bytes]) -> None:
    *ended, rest = b"".join(chunks).split(b"\n")
    assert _lines(chunks, longest_bytes=1_000) == ended + ([rest] if rest else [])


@given(st.lists(st.sampled_from([b"a", b"ab", b"\n", b"abc\n"])))
def test_of_a_line_over_the_limit_only_its_place_is_kept(chunks: list[bytes]) -> None:
    whole = _lines(chunks, longest_bytes=1_000)
    cut = _lines(chunks, longest_bytes=3)
    assert cut == [None if line is None or len(line) > 3 else line for line in whole]
