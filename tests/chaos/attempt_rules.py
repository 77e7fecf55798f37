"""Rules about attempts: how many there may be, and how they are counted.

``attempt`` counts the grants that were not released. The service itself releases what it granted to a client
that has gone, so a grant may have been released if any call for it, or a release of it, was in doubt.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.facts import Facts, JobFacts, Token, Verdict
from tests.chaos.rules import Found


@dataclass(frozen=True, slots=True)
class _Run:
    """A version that is known to have been granted, and what is known of its release."""

    token: Token
    attempt: int
    events: tuple[int, ...]
    may_be_released: bool
    is_released: bool


def _runs(job: JobFacts) -> list[_Run]:
    """Return the known grants of a job, by version, each once."""
    releases: dict[Token, set[Verdict]] = {}
    for word in job.words:
        if word.verb == "release":
            releases.setdefault(word.token, set()).add(word.verdict)
    runs: dict[Token, _Run] = {}
    for grant in job.grants:
        verdicts = releases.get(grant.token, set())
        known = runs.get(grant.token)
        runs[grant.token] = _Run(
            grant.token,
            grant.attempt,
            grant.call.events,
            may_be_released=bool(verdicts - {Verdict.REFUSED})
            or grant.has_doubtful_twin
            or (known is not None and known.may_be_released),
            is_released=bool(verdicts & {Verdict.ACCEPTED, Verdict.REPLAYED}),
        )
    return sorted(runs.values(), key=lambda run: run.token.version)


def attempts_stay_within_the_limit(facts: Facts) -> Iterator[Found]:
    """No grant is the (max_attempts + 1)th, as the service counts; attempts_are_counted looks after that."""
    for job in facts.jobs.values():
        limits = [wish.max_attempts for wish in job.wishes] + [row.job["max_attempts"] for row in job.rows]
        for run in _runs(job) if limits else []:
            if not 1 <= run.attempt <= limits[0]:
                sentence = f"attempt {run.attempt} of {limits[0]} was granted"
                yield Found(job.job_id, run.events, sentence)


def attempts_are_counted(facts: Facts) -> Iterator[Found]:
    """From one grant to the next the count grows by one, by none after a release.

    Versions in between that no answer has shown may have been granted, and released, or not.
    """
    for job in facts.jobs.values():
        runs = _runs(job)
        if runs and runs[0].attempt > runs[0].token.version:
            sentence = f"version {runs[0].token.version} is attempt {runs[0].attempt}"
            yield Found(job.job_id, runs[0].events, sentence)
        for run, following in pairwise(runs):
            unknown = following.token.version - run.token.version - 1
            least, most = _after(run)
            if not least + 1 <= following.attempt <= most + 1 + unknown:
                sentence = (
                    f"version {run.token.version} was attempt {run.attempt}, "
                    f"version {following.token.version} is attempt {following.attempt}"
                )
                yield Found(job.job_id, (*run.events, *following.events), sentence)
        if runs and job.rows:
            row = job.rows[0]
            least, most = _after(runs[-1])
            if not least <= row.job["attempt"] <= most + row.job["lease_version"] - runs[-1].token.version:
                sentence = (
                    f"the last grant was attempt {runs[-1].attempt}, in the end {row.job['attempt']} count"
                )
                yield Found(job.job_id, (*runs[-1].events, row.number), sentence)


def _after(run: _Run) -> tuple[int, int]:
    """Return the least and the most attempts that can be counted when this one has ended."""
    return run.attempt - int(run.may_be_released), run.attempt - int(run.is_released)
