"""Every declared client passes every case that it can."""

import pytest

from clients.conformance import report, suite
from clients.conformance.adapters import Adapter, declared
from clients.conformance.case import load
from tests.support.programs import needed_program


@pytest.mark.slow
@pytest.mark.parametrize("client", declared(), ids=lambda client: client.name)
async def test_client_keeps_the_worker_protocol(client: Adapter) -> None:
    for program in client.programs:
        needed_program(program)
    client.make()
    verdicts = await suite.run(suite.pairs_of(load(), [client]), at_once=6)
    stories = ["\n".join(report.story(verdict)) for verdict in verdicts if not verdict.passed]
    assert not stories, "\n\n".join(stories)
