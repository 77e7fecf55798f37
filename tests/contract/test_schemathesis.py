"""The document and the service say the same, whatever is sent: Schemathesis with all its checks.

``FUZZ_EXAMPLES=500 pytest tests/contract/test_schemathesis.py`` looks longer.
"""

import os
from collections.abc import Callable

import pytest
from schemathesis.checks import CHECKS

from tests.support.document import operations
from tests.support.fuzzing import API_KEYS, fuzz, walk
from tests.support.server import ServerProcess

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "20"))
# What a holder can say, with the statuses that say it was heard.
HOLDER_CALLS = {
    "POST /v1/jobs/{job_id}/heartbeat": 200,
    "POST /v1/jobs/{job_id}/complete": 200,
    "POST /v1/jobs/{job_id}/fail": 200,
    "POST /v1/jobs/{job_id}/release": 200,
    "POST /v1/jobs/{job_id}/verify": 204,
    "POST /v1/leases/heartbeat": 200,
    "POST /v1/leases/complete": 200,
    "POST /v1/leases/release": 200,
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("phases", [("examples", "coverage"), ("fuzzing",)], ids="-".join)
def test_service_and_document_agree_whatever_is_sent(
    serve: Callable[..., ServerProcess], tell: Callable[[object], None], phases: tuple[str, ...]
) -> None:
    run = fuzz(serve(log_level="error", api_keys=API_KEYS).url, phases=phases, max_examples=EXAMPLES)
    tell(run)
    assert not run.faults, "\n\n".join(run.faults)
    assert run.cases.keys() == set(phases)
    assert run.operations == {f"{operation.method} {operation.path}" for operation in operations()}
    assert run.checks.keys() == set(CHECKS.get_all_names())


def test_service_and_document_agree_all_along_the_links(
    serve: Callable[..., ServerProcess], tell: Callable[[object], None]
) -> None:
    run = walk(serve(log_level="error", api_keys=API_KEYS).url, min_case_count=10 * EXAMPLES)
    tell(run)
    assert not run.faults, "\n\n".join(run.faults)


def test_links_lead_from_a_lease_to_every_call_of_its_holder(
    serve: Callable[..., ServerProcess], tell: Callable[[object], None]
) -> None:
    walked = {"POST /v1/jobs", "POST /v1/leases", "GET /v1/leases", *HOLDER_CALLS}
    names = [each.name for each in operations() if f"{each.method} {each.path}" in walked]
    run = walk(
        serve(log_level="error", api_keys=API_KEYS).url, min_case_count=20 * EXAMPLES, operation_ids=names
    )
    tell(run)
    assert not run.faults, "\n\n".join(run.faults)
    for call, status in HOLDER_CALLS.items():
        assert run.steps["POST /v1/leases", call, status] > 0, call
