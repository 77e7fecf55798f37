"""Every declared client passes every case that it can."""

from collections.abc import Callable

import pytest

from clients.conformance import report, suite
from clients.conformance.adapters import Adapter, declared
from clients.conformance.case import load
from tests.conformance.playing import surprises
from tests.support.programs import needed_program


@pytest.mark.slow
@pytest.mark.parametrize("client", declared(), ids=lambda client: client.name)
async def test_client_keeps_the_worker_protocol(client: Adapter, tell: Callable[[object], None]) -> None:
    for program in client.programs:
        needed_program(program)
    client.make()
    failed = await surprises(suite.pairs_of(load(), [client]), expected=True, at_once=6, tell=tell)
    stories = ["\n".join(report.story(verdict)) for verdict in failed]
    assert not stories, "\n\n".join(stories)
