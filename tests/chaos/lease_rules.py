"""Rules about leases: one holder at a time, versions that rise, and a fence without a gap.

A call takes effect at one moment between its beginning and its answer, or at any time since its beginning
when it is in doubt. Two calls contradict an order only if no choice of moments within these bounds obeys it.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.chaos.facts import (
    SETTLING,
    Facts,
    Grant,
    JobFacts,
    Sighting,
    Token,
    Verdict,
    Word,
    requester,
    successes,
)
from tests.chaos.job_rules import stands
from tests.chaos.rules import Found


def versions_rise(facts: Facts) -> Iterator[Found]:
    """A grant whose call ended before another one's began has the lower version."""
    for job in facts.jobs.values():
        latest: Grant | None = None
        for grants in _by_version(job.grants):
            first_answered = min(grants, key=lambda grant: grant.call.ended_at)
            if latest is not None and latest.began_at > first_answered.call.ended_at:
                sentence = (
                    f"version {first_answered.token.version} was granted before "
                    f"version {latest.token.version} was asked for"
                )
                yield Found(job.job_id, (*first_answered.call.events, *latest.call.events), sentence)
            begun = max(grants, key=lambda grant: grant.began_at)
            latest = begun if latest is None or begun.began_at > latest.began_at else latest


def _by_version(grants: Iterable[Grant]) -> list[list[Grant]]:
    grouped: dict[int, list[Grant]] = defaultdict(list)
    for grant in grants:
        grouped[grant.token.version].append(grant)
    return [grouped[version] for version in sorted(grouped)]


def versions_are_granted_once(facts: Facts) -> Iterator[Found]:
    """A version belongs to one lease call and its repeats under one request_id."""
    for job in facts.jobs.values():
        for grants in _by_version(job.grants):
            calls = [grant.call.number for grant in grants]
            if len({grant.requester for grant in grants}) > 1 or len(set(calls)) < len(calls):
                numbers = tuple(number for grant in grants for number in grant.call.events)
                sentence = f"version {grants[0].token.version} was granted {len(grants)} times"
                yield Found(job.job_id, numbers, sentence)


def accepted_calls_were_granted(facts: Facts) -> Iterator[Found]:
    """Nothing is accepted under a version that was not granted before that answer.

    A version that no answer shows may have been granted by a call of the same client whose answer was lost,
    with all its repeats: it can ask what it holds (GET /v1/leases), and reads are not written down.
    """
    lost_at = _lost_grants_at(facts)
    for job in facts.jobs.values():
        began_at: dict[int, float] = {}
        for grant in job.grants:
            version = grant.token.version
            began_at[version] = min(grant.began_at, began_at.get(version, math.inf))
        for word in successes(job.words):
            unseen_at = lost_at.get(word.call.asked.client, math.inf)
            if began_at.get(word.token.version, unseen_at) > word.call.ended_at:
                sentence = f"{word.verb} was accepted under version {word.token.version} before its grant"
                yield Found(job.job_id, word.call.events, sentence)


def _lost_grants_at(facts: Facts) -> dict[str, float]:
    """Return for each client when the first of its lease calls began that was never answered."""
    answered = {requester(call) for call in facts.lease_calls if not call.is_in_doubt}
    began_at: dict[str, float] = {}
    for call in facts.lease_calls:
        if requester(call) not in answered:
            client = call.asked.client
            began_at[client] = min(call.began_at, began_at.get(client, math.inf))
    return began_at


class _Seen:
    """The highest version that answers had shown before a time."""

    def __init__(self, sightings: Iterable[Sighting]) -> None:
        self._times: list[float] = []
        self._highest: list[Sighting] = []
        for sighting in sorted(sightings, key=lambda seen: seen.at):
            self._times.append(sighting.at)
            is_higher = not self._highest or sighting.version > self._highest[-1].version
            self._highest.append(sighting if is_higher else self._highest[-1])

    def before(self, time: float) -> Sighting | None:
        index = bisect_left(self._times, time)
        return self._highest[index - 1] if index else None


def stale_words(job: JobFacts) -> Iterator[tuple[Word, Sighting]]:
    """Yield each call that began when a higher version had been shown, with what showed it.

    The repeat of an accepted end is none: it is answered, and changes nothing.
    """
    seen = _Seen(job.sightings)
    for word in job.words:
        sighting = seen.before(word.call.began_at)
        is_stale = sighting is not None and sighting.version > word.token.version
        if sighting is not None and is_stale and word.verdict is not Verdict.REPLAYED:
            yield word, sighting


def stale_calls_are_refused(facts: Facts) -> Iterator[Found]:
    """Once a version is known to be passed on, no call under it that begins after that is accepted."""
    for job in facts.jobs.values():
        for word, sighting in stale_words(job):
            if word.verdict is Verdict.ACCEPTED:
                sentence = (
                    f"{word.verb} was accepted under version {word.token.version}, "
                    f"begun after version {sighting.version} was shown"
                )
                yield Found(job.job_id, (*sighting.events, *word.call.events), sentence)


def versions_take_turns(facts: Facts) -> Iterator[Found]:
    """What was accepted under different versions fits into one order: all of a version before the next.

    stale_calls_are_refused judges the accepted call under a version that was passed on; this one, a grant
    that comes after words of a higher version, and a repeat whose original can only have been stale.
    """
    for job in facts.jobs.values():
        words = successes(job.words)
        repeated = [word for word in words if word.verdict is Verdict.REPLAYED]
        starts: dict[object, float] = {}
        for word in job.words:
            if word.verdict is not Verdict.REFUSED:
                starts[word.identity] = min(word.call.began_at, starts.get(word.identity, math.inf))
        for word in words:
            for grant in job.grants:
                if grant.token.version < word.token.version and grant.began_at > word.call.ended_at:
                    sentence = (
                        f"version {grant.token.version} was granted after {word.verb} under "
                        f"version {word.token.version} was accepted"
                    )
                    yield Found(job.job_id, (*word.call.events, *grant.call.events), sentence)
        later = [(grant.token, grant.call) for grant in job.grants] + [
            (word.token, word.call) for word in words
        ]
        for word in repeated:
            for token, call in later:
                if token.version > word.token.version and starts[word.identity] > call.ended_at:
                    sentence = (
                        f"{word.verb} under version {word.token.version} was answered as a repeat, "
                        f"but its first call came after version {token.version}"
                    )
                    yield Found(job.job_id, (*call.events, *word.call.events), sentence)
                    break


def versions_end_once(facts: Facts) -> Iterator[Found]:
    """Of all ends that holders gave to a version one counts, and its repeats are called so."""
    for job in facts.jobs.values():
        for words in _ends(job).values():
            accepted = [word for word in words if word.verdict is Verdict.ACCEPTED]
            if len({word.identity for word in words}) > 1 or len(accepted) > 1:
                numbers = tuple(number for word in words for number in word.call.events)
                verbs = ", ".join(word.verb for word in words)
                sentence = f"version {words[0].token.version} was ended more than once: {verbs}"
                yield Found(job.job_id, numbers, sentence)


def nothing_follows_the_end(facts: Facts) -> Iterator[Found]:
    """Once an end of a version was accepted, nothing is accepted under it, nor is it handed out again."""
    for job in facts.jobs.values():
        ended_at = {token: min(word.call.ended_at for word in words) for token, words in _ends(job).items()}
        for word in job.words:
            is_end = word.verb in SETTLING
            is_late = word.call.began_at > ended_at.get(word.token, math.inf)
            if word.verdict is Verdict.ACCEPTED and is_late and not is_end:
                sentence = f"{word.verb} was accepted under version {word.token.version}, which had ended"
                yield Found(job.job_id, word.call.events, sentence)
        for grant in job.grants:
            if grant.call.began_at > ended_at.get(grant.token, math.inf):
                sentence = f"version {grant.token.version} was handed out again after its end"
                yield Found(job.job_id, grant.call.events, sentence)


def _ends(job: JobFacts) -> dict[Token, list[Word]]:
    ends: dict[Token, list[Word]] = defaultdict(list)
    for word in successes(job.settling):
        ends[word.token].append(word)
    return ends


def repeats_are_answered(facts: Facts) -> Iterator[Found]:
    """The repeat of an end that counts is answered as one; it is never refused.

    A complete that stands counts, also when its answer was lost. Which of the two was first does not matter:
    before the one that counts the version was still held, and after it the other is a repeat.
    """
    for job in facts.jobs.values():
        counting = {word.identity for word in job.settling if word.verdict.is_success}
        counting |= {
            word.identity for word in job.completes if word.verdict is Verdict.DOUBT and stands(job, word)
        }
        granted_at: dict[Token, float] = {}
        for grant in job.grants:
            ended_at = grant.call.ended_at
            granted_at[grant.token] = min(ended_at, granted_at.get(grant.token, math.inf))
        for word in job.settling:
            is_refused = word.verdict is Verdict.REFUSED and word.identity in counting
            if is_refused and word.call.began_at > granted_at.get(word.token, math.inf):
                sentence = (
                    f"{word.verb} under version {word.token.version} counts, and its repeat was refused"
                )
                yield Found(job.job_id, word.call.events, sentence)
