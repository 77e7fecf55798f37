"""Histories for the rules about leases, attempts and single answers."""

from tests.chaos.job_stories import run
from tests.chaos.stories import breaks, legal
from tests.chaos.tale import Tale, job, lost


@breaks("versions_rise")
def a_lower_version_is_granted_later(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 2, 2))
    tale.lease(("j", 1, 1))
    tale.say("complete", 2, began=20)
    tale.end(job(version=2, attempt=2))


@legal
def the_answer_with_the_lower_version_comes_later(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), began=3, ended=9)
    tale.lease(("j", 2, 2), began=4, ended=5)
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@legal
def a_lease_call_in_doubt_was_granted_before_its_repeat_began(tale: Tale) -> None:
    tale.submit()
    tale.lease(request="r", is_answered=False, began=3, ended=4)
    tale.lease(("j", 2, 2), began=5, ended=6, worker="other")
    tale.lease(("j", 1, 1), request="r", began=7, ended=8)
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("versions_are_granted_once")
def two_workers_get_one_version(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), worker="one")
    tale.lease(("j", 1, 1), worker="two")
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("versions_are_granted_once")
def one_answer_has_a_job_twice(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), ("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1))


@legal
def a_repeated_lease_call_gets_the_same_version(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), request="r")
    tale.lease(("j", 1, 1), request="r")
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("accepted_calls_were_granted")
def a_guessed_version_is_accepted(tale: Tale) -> None:
    tale.submit()
    tale.say("complete", 1)
    tale.end(job(version=1))


@breaks("accepted_calls_were_granted")
def a_version_is_accepted_before_the_call_that_may_have_been_granted_it(tale: Tale) -> None:
    tale.submit()
    tale.say("complete", 1)
    tale.lease(is_answered=False)
    tale.end(job(version=1))


@breaks("accepted_calls_were_granted")
def a_version_is_accepted_that_the_repeat_of_a_lost_call_did_not_show(tale: Tale) -> None:
    tale.submit()
    tale.lease(request="r", is_answered=False)
    tale.lease(request="r")
    tale.say("complete", 1)
    tale.end(job(version=1))


@legal
def a_worker_that_lost_an_answer_reads_what_it_holds_and_releases_it(tale: Tale) -> None:
    tale.submit()
    tale.lease(is_answered=False)
    tale.say("release", 1)
    tale.lease(("j", 2, 1))
    tale.say("complete", 2)
    tale.end(job(version=2))


@legal
def an_answer_overtakes_the_answer_to_the_grant(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), began=3, ended=9)
    tale.say("complete", 1, began=5, ended=6)
    tale.end(job(version=1))


@breaks("stale_calls_are_refused")
def a_heartbeat_is_accepted_after_the_job_was_passed_on(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), worker="one")
    tale.lease(("j", 2, 2), worker="two")
    tale.say("heartbeat", 1)
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("stale_calls_are_refused")
def a_stale_call_is_accepted_though_the_grant_is_only_known_by_a_refusal(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("heartbeat", 1, lost(current=2))
    tale.say("verify", 1)
    tale.lease(("j", 3, 3))
    tale.say("complete", 3)
    tale.end(job(version=3, attempt=3))


@breaks("stale_calls_are_refused")
def a_child_is_made_under_a_parent_that_was_passed_on(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    child = {"parent": {"job_id": "j", "lease_version": 1}}
    tale.submit("c", mark="child", body=child)
    tale.say("complete", 2)
    run(tale, "c")
    tale.end(job(version=2, attempt=2), job("c", version=1, mark="child"))


@breaks("stale_calls_are_refused")
def one_item_of_a_batch_is_stale_and_accepted(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    items = [{"job_id": "j", "lease_version": version} for version in (1, 2)]
    tale.tell("/leases/heartbeat", {"items": items}, (200, {"results": [{"status": "ok"}, {"status": "ok"}]}))
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@legal
def a_call_that_overlaps_the_next_grant_is_accepted(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), began=3, ended=4)
    tale.lease(("j", 2, 2), began=5, ended=9)
    tale.say("heartbeat", 1, began=8, ended=12)
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@legal
def stale_calls_of_every_kind_are_refused_or_in_doubt(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    for verb in ("heartbeat", "complete", "fail", "release", "verify"):
        tale.say(verb, 1, lost(current=2), result="stale")
        tale.say(verb, 1, None, result="stale")
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@legal
def a_repeat_of_an_accepted_fail_is_answered_after_the_next_grant(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("fail", 1, None, error={"message": "no"})
    tale.lease(("j", 2, 2))
    tale.say("fail", 1, "replayed", error={"message": "no"})
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("versions_take_turns")
def a_stale_fail_is_passed_off_as_a_repeat(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    tale.say("fail", 1, "replayed", error={"message": "no"})
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("versions_take_turns")
def a_lower_version_is_granted_after_words_of_a_higher_one(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 2, 2), began=3, ended=30)
    tale.say("heartbeat", 2, began=5, ended=6)
    tale.lease(("j", 1, 1), began=10, ended=11)
    tale.say("complete", 2, began=40)
    tale.end(job(version=2, attempt=2))


@breaks("versions_end_once")
def a_version_fails_in_two_ways(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("fail", 1, error={"message": "no"})
    tale.say("fail", 1, error={"message": "no"}, retryable=False)
    tale.end(job(version=1, state="dead"))


@breaks("versions_end_once")
def a_repeat_is_not_called_one(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.say("complete", 1)
    tale.end(job(version=1))


@legal
def a_complete_is_repeated_and_called_a_repeat(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, result={"a": 1, "b": 2})
    tale.say("complete", 1, "replayed", result={"b": 2, "a": 1})
    tale.end(job(version=1, result={"b": 2, "a": 1}))


@breaks("nothing_follows_the_end")
def a_lease_is_verified_after_its_end(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.say("verify", 1, (204, None))
    tale.end(job(version=1))


@breaks("nothing_follows_the_end")
def a_repeated_lease_call_gets_a_version_that_has_ended(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1), request="r")
    tale.say("complete", 1)
    tale.lease(("j", 1, 1), request="r")
    tale.end(job(version=1))


@legal
def a_heartbeat_overlaps_the_complete(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, began=5, ended=9)
    tale.say("heartbeat", 1, began=6, ended=12)
    tale.end(job(version=1))


@breaks("repeats_are_answered")
def the_repeat_of_an_accepted_release_is_refused(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("release", 1)
    tale.say("release", 1, lost(current=1, state="ready"))
    tale.lease(("j", 2, 1))
    tale.say("complete", 2)
    tale.end(job(version=2))


@breaks("repeats_are_answered")
def the_repeat_of_a_complete_that_was_done_in_doubt_is_refused(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None)
    tale.say("complete", 1, lost(current=1, state="succeeded"))
    tale.end(job(version=1))


@legal
def the_repeat_of_a_complete_that_was_not_done_is_refused(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1, None, result="first")
    tale.lease(("j", 2, 2))
    tale.say("complete", 1, lost(current=2), result="first")
    tale.say("complete", 2, result="second")
    tale.end(job(version=2, attempt=2, result="second"))


# Attempts.


@breaks("attempts_stay_within_the_limit")
def one_attempt_too_many_is_granted(tale: Tale) -> None:
    tale.submit(body={"max_attempts": 1})
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 2))
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2, max_attempts=1))


@breaks("attempts_are_counted")
def a_released_attempt_is_not_given_back(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("release", 1)
    tale.lease(("j", 2, 2))
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=2))


@breaks("attempts_are_counted")
def an_expired_attempt_is_given_back(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.lease(("j", 2, 1))
    tale.say("complete", 2)
    tale.end(job(version=2, attempt=1))


@breaks("attempts_are_counted")
def the_list_counts_another_number_than_the_grant(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("complete", 1)
    tale.end(job(version=1, attempt=2))


@legal
def releases_may_go_on_for_ever(tale: Tale) -> None:
    tale.submit(body={"max_attempts": 1})
    for version in range(1, 6):
        tale.lease(("j", version, 1))
        tale.say("release", version, None if version == 3 else "ok")
    tale.lease(("j", 6, 1))
    tale.say("complete", 6)
    tale.end(job(version=6, attempt=1, max_attempts=1))


@legal
def a_grant_to_a_client_that_had_gone_is_given_back_or_not(tale: Tale) -> None:
    tale.submit()
    tale.lease(request="r", is_answered=False)
    tale.lease(("j", 1, 1), request="r")
    tale.lease(("j", 2, 1))
    tale.lease(request="s", is_answered=False)
    tale.lease(("j", 4, 3))
    tale.say("complete", 4)
    tale.end(job(version=4, attempt=3))


# Answers.


@breaks("answers_are_of_the_contract")
def a_bare_500(tale: Tale) -> None:
    tale.tell("/jobs", {"metadata": {"mark": "m"}}, (500, {"code": "internal_error"}))


@breaks("answers_are_of_the_contract")
def a_503_that_does_not_say_when_to_come_back(tale: Tale) -> None:
    tale.tell("/jobs", {"metadata": {"mark": "m"}}, (503, {"code": "unavailable"}))


@breaks("answers_are_of_the_contract")
def a_good_call_is_called_malformed(tale: Tale) -> None:
    tale.tell("/jobs", {"metadata": {"mark": "m"}}, (422, {"code": "invalid_request"}))


@breaks("answers_are_of_the_contract")
def a_job_that_exists_is_not_found(tale: Tale) -> None:
    tale.submit()
    tale.lease(("j", 1, 1))
    tale.say("heartbeat", 1, (404, {"code": "job_not_found"}))
    items = {"items": [{"job_id": "j", "lease_version": 1}]}
    tale.tell("/leases/verify", items, (200, {"results": [{"job_id": "j", "status": "not_found"}]}))
    tale.say("complete", 1)
    tale.end(job(version=1))


@legal
def a_503_with_retry_after(tale: Tale) -> None:
    tale.tell("/leases", {"worker_id": "w"}, (503, {"code": "unavailable"}), retry_after="1")
