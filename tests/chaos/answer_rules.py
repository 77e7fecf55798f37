"""Rules about single answers: which there may be at all."""

from collections.abc import Iterator

from tests.chaos.facts import Call, Facts
from tests.chaos.rules import Found


def answers_are_of_the_contract(facts: Facts) -> Iterator[Found]:
    """A good call is answered by success, a conflict that its verb may meet, or a 503 with Retry-After."""
    for call in facts.calls:
        if call.answer is None:
            continue
        complaint = _complaint(call, call.answer.status)
        if complaint is not None:
            sentence = f"{call.asked.method} {call.asked.path} was answered {complaint}"
            yield Found(None, call.events, sentence)


def _complaint(call: Call, status: int) -> str | None:
    answer = call.answer
    assert answer is not None
    code = answer.body.get("code") if isinstance(answer.body, dict) else None
    if status == 503:
        return None if answer.retry_after and code else "503 without Retry-After or code"
    if status >= 500:
        return f"a bare {status}"
    if status == 409:
        verb = call.asked.path.rsplit("/", 1)[-1]
        allowed = {"cancel": "already_finished", "leases": None}.get(verb, "lease_lost")
        return None if code == allowed else f"409 {code}"
    if status >= 400:
        return f"{status} {code}"
    results = answer.body.get("results", []) if isinstance(answer.body, dict) else []
    unknown = [item["job_id"] for item in results if item["status"] == "not_found"]
    return f"not_found for {unknown[0]}" if unknown else None
