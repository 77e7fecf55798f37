"""Rules about jobs as a whole: what was promised exists, once, ends, and ends as somebody asked."""

from collections.abc import Iterator

from tests.chaos.facts import TERMINAL, Facts, JobFacts, Row, Verdict, Word, successes
from tests.chaos.rules import Found


def acknowledged_jobs_exist(facts: Facts) -> Iterator[Found]:
    """A job that any answer has shown stands in the final list."""
    for job in facts.jobs.values():
        shown = [wish.call.events for wish in job.wishes] + [seen.events for seen in job.sightings]
        if shown and not job.rows:
            yield Found(job.job_id, shown[0], "it was acknowledged, and is not in the list")


def jobs_end(facts: Facts) -> Iterator[Found]:
    for job in facts.jobs.values():
        for row in job.rows:
            if row.job["state"] not in TERMINAL:
                yield Found(job.job_id, (row.number,), f"it was still {row.job['state']} in the end")


def jobs_are_listed_once(facts: Facts) -> Iterator[Found]:
    """The list of all has a job once, and of the lists of single states exactly the one of its state does."""
    for job in facts.jobs.values():
        states = [state for state, _ in job.rows_by_state]
        numbers = tuple(row.number for row in [*job.rows, *(row for _, row in job.rows_by_state)])
        if len(job.rows) > 1:
            yield Found(job.job_id, numbers, f"it is listed {len(job.rows)} times")
        elif job.rows and states != [job.rows[0].job["state"]]:
            lists = ", ".join(states) or "none"
            yield Found(job.job_id, numbers, f"it is {job.rows[0].job['state']}, but in the list of: {lists}")


def keys_name_one_job(facts: Facts) -> Iterator[Found]:
    """All answers under one idempotency key name one job, created once, and the list has no other."""
    rows: dict[str, list[Row]] = {}
    for job in facts.jobs.values():
        for row in job.rows[:1]:
            if row.job["idempotency_key"] is not None:
                rows.setdefault(row.job["idempotency_key"], []).append(row)
    for key, wishes in facts.wishes_by_key.items():
        answered = [wish for wish in wishes if wish.job_id is not None]
        ids = {wish.job_id for wish in answered} | {row.job["id"] for row in rows.get(key, [])}
        created = [wish for wish in answered if wish.verdict is Verdict.ACCEPTED]
        events = tuple(number for wish in answered for number in wish.call.events)
        if len(ids) > 1:
            yield Found(min(map(str, ids)), events, f"key {key} has {len(ids)} jobs")
        elif len(created) > 1:
            yield Found(created[0].job_id, events, f"key {key} was answered as new {len(created)} times")


def jobs_were_asked_for(facts: Facts) -> Iterator[Found]:
    """A job in the list was asked for by a call that was not refused, and by one call each without a key."""
    for mark, rows in facts.rows_by_mark.items():
        if mark in facts.follow_up_marks:
            continue
        wishes = [wish for wish in facts.wishes_by_mark.get(mark, []) if wish.verdict is not Verdict.REFUSED]
        # With a key, one call and its repeats make one job; keys_name_one_job counts those.
        unkeyed = [wish for wish in wishes if wish.key is None]
        count = len({row.job["id"] for row in rows})
        if not wishes or (len(unkeyed) == len(wishes) and count > len(unkeyed)):
            numbers = tuple(row.number for row in rows)
            sentence = f"{count} jobs for {len(wishes)} calls that may have made one"
            yield Found(rows[-1].job["id"], numbers, sentence)


def follow_ups_come_with_their_complete(facts: Facts) -> Iterator[Found]:
    """Follow-up jobs exist, each once, if the complete that carried them stands, and else not at all."""
    for job in facts.jobs.values():
        if not job.rows:
            continue
        completes: dict[str, list[Word]] = {}
        for word in job.completes:
            for mark in word.follow_up_marks:
                completes.setdefault(mark, []).append(word)
        for mark, words in completes.items():
            expected = int(any(stands(job, word) for word in words))
            rows = facts.rows_by_mark.get(mark, [])
            if len({row.job["id"] for row in rows}) != expected:
                numbers = (*words[0].call.events, *(row.number for row in rows))
                which = "stands" if expected else "does not stand"
                sentence = f"its complete {which}, and follow-up {mark} was found {len(rows)} times"
                yield Found(job.job_id, numbers, sentence)


def stands(job: JobFacts, word: Word) -> bool:
    """Whether the job ended by this complete, as far as the list tells."""
    return bool(job.rows) and job.rows[0].ending == ("succeeded", word.token.version, word.result)


def completes_stand(facts: Facts) -> Iterator[Found]:
    """An accepted complete is never undone: the job ended by it, and no version came after."""
    for job in facts.jobs.values():
        for word in successes(job.completes):
            if job.rows and not stands(job, word):
                state, version, result = job.rows[0].ending
                sentence = (
                    f"its complete under version {word.token.version} was accepted, "
                    f"but it ended {state} under {version} with result {result}"
                )
                yield Found(job.job_id, (*word.call.events, job.rows[0].number), sentence)
            for grant in job.grants:
                if grant.token.version > word.token.version:
                    sentence = (
                        f"its complete under version {word.token.version} was accepted, "
                        f"and version {grant.token.version} was granted"
                    )
                    yield Found(job.job_id, (*word.call.events, *grant.call.events), sentence)


def refused_completes_do_nothing(facts: Facts) -> Iterator[Found]:
    """The complete that stands is not one that was only ever refused; in doubt it may have been done."""
    for job in facts.jobs.values():
        standing = [word for word in job.completes if stands(job, word)]
        if standing and all(word.verdict is Verdict.REFUSED for word in standing):
            events = (*standing[0].call.events, job.rows[0].number)
            yield Found(job.job_id, events, "it ended by a complete that was refused")


def endings_have_a_cause(facts: Facts) -> Iterator[Found]:
    """Success has its complete, a cancelled job its cancel, a dead one its attempts or a last fail."""
    for job in facts.jobs.values():
        for row in job.rows[:1]:
            state = row.job["state"]
            match state:
                case "succeeded":
                    is_caused = any(stands(job, word) for word in job.completes)
                case "cancelled":
                    is_caused = any(cancel.verdict is not Verdict.REFUSED for cancel in job.cancels)
                case "dead":
                    is_caused = row.job["attempt"] >= row.job["max_attempts"] or any(
                        word.verdict is not Verdict.REFUSED and not word.body.get("retryable", True)
                        for word in job.words
                        if word.verb == "fail"
                    )
                case _:
                    is_caused = True
            if not is_caused:
                yield Found(job.job_id, (row.number,), f"it is {state}, and nobody has asked for that")


def finished_jobs_stay(facts: Facts) -> Iterator[Found]:
    """What an answer has shown as finished stays so, under its version, and is not granted again."""
    for job in facts.jobs.values():
        for seen in job.sightings:
            if seen.state not in TERMINAL:
                continue
            was = (seen.state, seen.version)
            if job.rows and job.rows[0].ending[:2] != was:
                state, version, _ = job.rows[0].ending
                sentence = f"it was {seen.state} under {seen.version}, and ended {state} under {version}"
                yield Found(job.job_id, (*seen.events, job.rows[0].number), sentence)
            for grant in job.grants:
                if grant.call.began_at > seen.at:
                    sentence = (
                        f"it was {seen.state}, and version {grant.token.version} was granted after that"
                    )
                    yield Found(job.job_id, (*seen.events, *grant.call.events), sentence)
