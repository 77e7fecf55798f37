import os
from functools import partial

from app.work.watch import Watch
from tests.support.waiting import until


async def test_one_that_a_call_has_removed_is_not_called_in_the_same_turn() -> None:
    pipes = dict([os.pipe(), os.pipe()])
    watch = Watch()
    called: list[int] = []

    def call(descriptor: int) -> None:
        called.append(descriptor)
        for each in pipes:
            watch.remove(each)

    for read_end, write_end in pipes.items():
        os.write(write_end, b"x")
        watch.add(read_end, partial(call, read_end))
    await until(lambda: called)
    assert len(called) == 1
    for pipe in pipes.items():
        for descriptor in pipe:
            os.close(descriptor)
