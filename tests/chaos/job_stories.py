"""Histories for the rules about jobs as a whole."""

from tests.chaos.stories import breaks, legal
from tests.chaos.tale import Tale, job, lost


@breaks("acknowledged_jobs_exist")
def a_job_was_acknowledged_and_is_gone(tale: Tale) -> None:
    tale.submit()


@legal
def a_job_whose_every_call_was_in_doubt_need_not_exist(tale: Tale) -> None:
    tale.submit(None, key="k")
    tale.tell("/jobs", {"metadata": {"mark": "m"}}, (503, {"code": "unavailable"}), key="k", retry_after="1")


@legal
def a_job_whose_every_call_was_in_doubt_may_exist(tale: Tale) -> None:
    tale.submit(None)
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("jobs_end")
def a_job_runs_for_ever(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.end(job(version=1, state="running"))


@breaks("jobs_are_listed_once")
def a_job_is_listed_twice(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1), job(version=1))


@breaks("keys_name_one_job")
def a_key_names_two_jobs(tale: Tale) -> None:
    for job_id in ("i", "j"):
        tale.submit(job_id, key="k")
        tale.lease((job_id, 1, 1))
        tale.say("complete", 1, job_id=job_id)
    tale.end(job("i", version=1), job("j", version=1))


@breaks("keys_name_one_job")
def a_call_in_doubt_made_a_second_job_of_the_key(tale: Tale) -> None:
    tale.submit(None, key="k")
    tale.submit("i", key="k")
    for job_id in ("i", "j"):
        tale.lease((job_id, 1, 1))
        tale.say("complete", 1, job_id=job_id)
    tale.end(job("i", version=1, idempotency_key="k"), job("j", version=1, idempotency_key="k"))


@breaks("keys_name_one_job")
def both_twins_of_a_key_are_told_that_theirs_is_new(tale: Tale) -> None:
    tale.submit(key="k", began=0, ended=3)
    tale.submit(key="k", began=1, ended=4)
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1, idempotency_key="k"))


@legal
def twins_of_a_key_get_one_job_after_a_call_in_doubt(tale: Tale) -> None:
    tale.submit(None, key="k")
    tale.submit(key="k", status=200, began=5, ended=8)
    tale.submit(key="k", status=200, began=6, ended=7)
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1, idempotency_key="k"))


@breaks("jobs_were_asked_for")
def a_job_appears_that_nobody_asked_for(tale: Tale) -> None:
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("jobs_were_asked_for")
def one_call_without_a_key_makes_two_jobs(tale: Tale) -> None:
    tale.submit("i")
    for job_id in ("i", "j"):
        tale.lease((job_id, 1, 1))
        tale.say("complete", 1, job_id=job_id)
    tale.end(job("i", version=1), job("j", version=1))


@breaks("jobs_were_asked_for")
def a_refused_child_exists(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    child = {"metadata": {"mark": "child"}, "parent": {"job_id": "j", "lease_version": 1}}
    tale.tell("/jobs", child, lost(current=1, state="succeeded"))
    tale.lease(("c", 1, 1))
    tale.say("complete", 1, job_id="c")
    tale.end(job(version=1), job("c", version=1, mark="child"))


@legal
def two_calls_without_a_key_make_two_jobs(tale: Tale) -> None:
    tale.submit(None)
    tale.submit("i")
    for job_id in ("i", "j"):
        tale.lease((job_id, 1, 1))
        tale.say("complete", 1, job_id=job_id)
    tale.end(job("i", version=1), job("j", version=1))


FOLLOW_UPS = [{"metadata": {"mark": "f1"}}, {"metadata": {"mark": "f2"}}]


def follow_up(number: int) -> dict[str, object]:
    return job(f"f{number}", version=1, mark=f"f{number}")


def run(tale: Tale, *job_ids: str) -> None:
    for job_id in job_ids:
        tale.lease((job_id, 1, 1))
        tale.say("complete", 1, job_id=job_id)


@breaks("follow_ups_come_with_their_complete")
def half_of_the_follow_ups_are_missing(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, enqueue=FOLLOW_UPS)
    run(tale, "f1")
    tale.end(job(version=1), follow_up(1))


@breaks("follow_ups_come_with_their_complete")
def a_refused_complete_has_left_its_follow_ups(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    tale.say("complete", 1, lost(current=2), result="old", enqueue=FOLLOW_UPS)
    tale.say("complete", 2)
    run(tale, "f1", "f2")
    tale.end(job(version=2, attempt=2), follow_up(1), follow_up(2))


@breaks("follow_ups_come_with_their_complete")
def a_repeat_has_made_the_follow_ups_once_more(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None, enqueue=FOLLOW_UPS)
    tale.say("complete", 1, "replayed", enqueue=FOLLOW_UPS)
    run(tale, "f1", "f2", "f3")
    tale.end(job(version=1), follow_up(1), follow_up(2), {**follow_up(1), "id": "f3"})


@legal
def every_attempt_asks_for_the_same_follow_ups(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    tale.say("complete", 1, lost(current=2), enqueue=FOLLOW_UPS)
    tale.say("complete", 2, enqueue=FOLLOW_UPS)
    run(tale, "f1", "f2")
    tale.end(job(version=2, attempt=2), follow_up(1), follow_up(2))


@legal
def a_complete_in_doubt_was_done_with_its_follow_ups(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None, enqueue=FOLLOW_UPS)
    run(tale, "f1", "f2")
    tale.end(job(version=1), follow_up(1), follow_up(2))


@legal
def a_complete_in_doubt_was_not_done_nor_were_its_follow_ups(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None, enqueue=FOLLOW_UPS, result="first")
    tale.lease(("j", 2, 2))
    tale.say("complete", 2, result="second")
    tale.end(job(version=2, attempt=2, result="second"))


@breaks("completes_stand")
def an_accepted_complete_is_undone_by_a_later_run(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.lease(("j", 2, 2))
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("completes_stand")
def an_accepted_complete_loses_its_result(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None, result="a")
    tale.say("complete", 1, result="b")
    tale.end(job(version=1, result="a"))


@breaks("refused_completes_do_nothing")
def a_refused_complete_is_the_one_that_stands(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, lost(current=1))
    tale.end(job(version=1))


@legal
def a_refused_complete_was_sent_before_the_grant_and_done_in_doubt_after_it(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), began=3, ended=6)
    tale.say("complete", 1, lost(current=0, state="ready"), began=4, ended=5)
    tale.say("complete", 1, None)
    tale.end(job(version=1))


@breaks("endings_have_a_cause")
def a_job_succeeds_by_itself(tale: Tale) -> None:
    tale.submit()
    tale.end(job(version=0, attempt=0))


@breaks("endings_have_a_cause")
def a_job_is_cancelled_though_the_cancel_was_refused(tale: Tale) -> None:
    tale.submit()
    tale.cancel((409, {"code": "already_finished"}))
    tale.end(job(version=0, attempt=0, state="cancelled"))


@breaks("endings_have_a_cause")
def a_job_is_dead_with_attempts_left(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("fail", 1, error={"message": "no"})
    tale.end(job(version=1, state="dead"))


@legal
def a_job_dies_of_a_fail_in_doubt_that_is_not_retryable(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("fail", 1, None, error={"message": "no"}, retryable=False)
    tale.end(job(version=1, state="dead"))


@legal
def a_job_is_cancelled_by_a_call_in_doubt(tale: Tale) -> None:
    tale.submit()
    tale.cancel(None)
    tale.end(job(version=0, attempt=0, state="cancelled"))


@legal
def a_job_whose_clocks_used_up_its_attempts_is_dead(tale: Tale) -> None:
    tale.submit(body={"max_attempts": 2})
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    tale.end(job(version=2, attempt=2, max_attempts=2, state="dead"))


@breaks("finished_jobs_stay")
def a_cancelled_job_is_completed(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.cancel((200, {"state": "cancelled", "lease_version": 1}), force=True)
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("finished_jobs_stay")
def a_cancelled_job_is_granted(tale: Tale) -> None:
    tale.submit()
    tale.cancel((200, {"state": "cancelled", "lease_version": 1}), force=True)
    tale.lease(("j", 1, 1))
    tale.end(job(version=1, attempt=1, state="cancelled"))


@legal
def a_complete_wins_over_a_cancel_that_was_only_asked_for(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.cancel((202, {"state": "running", "lease_version": 1}))
    tale.say("complete", 1)
    tale.cancel((409, {"code": "already_finished"}))
    tale.end(job(version=1))
