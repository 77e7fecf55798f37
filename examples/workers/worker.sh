#!/usr/bin/env bash
# A correct worker with bash, curl and jq, on Linux: ./worker.sh http://127.0.0.1:8000 my-queue
#
# One job at a time. The handler is a process of its own, which is stopped, with all that it has started, when its lease
# is lost, when a cancel is asked for, and when a shutdown takes too long. The environment may have API_KEY,
# LEASE_SECONDS and DRAIN_SECONDS. Left out: several jobs at once, progress, checkpoints (`fencepost work` has them).
# The rules that the comments speak of are those of docs/worker-protocol.md.
set -uo pipefail
set -m # Every job is a process group: it is stopped as a whole, and Ctrl-C reaches this shell only.

(($# == 2)) || { echo "usage: $0 http://127.0.0.1:8000 my-queue" >&2; exit 2; }
for program in curl jq; do
	command -v "$program" >/dev/null || { echo "$0 needs $program" >&2; exit 2; }
done
address=$1 queue=$2 worker_id=$(uname -n)-$(</proc/sys/kernel/random/uuid)
# Times are in hundredths of a second, as the clock has them.
lease=$((${LEASE_SECONDS:-60} * 100)) drain=$((${DRAIN_SECONDS:-20} * 100)) grace=500
poll=$((lease / 3 < 2000 ? lease / 3 : 2000))
draining='' lease_call=''
work=$(mktemp -d)
# A process that is killed before it has become a program is still this shell, and would clear up.
trap '[[ $BASHPID != "$$" ]] || rm -rf "$work"' EXIT
trap 'draining=${draining:-$(clock)}; [[ ! $lease_call ]] || kill -KILL "$lease_call"' TERM INT
# In a file that only this user can read; the arguments of curl are seen by all.
printf 'Content-Type: application/json\n%s\n' "${API_KEY:+Authorization: Bearer $API_KEY}" >"$work/headers"

# The payload comes on standard input. The output is the result, as JSON, or the message of a failure on standard error.
handle() {
	local payload
	payload=$(cat)
	if jq --exit-status 'has("fail")' <<<"$payload" >/dev/null; then
		jq --raw-output .fail <<<"$payload" >&2
		return 1
	fi
	sleep "$(jq .seconds <<<"$payload")"
	jq '"waited \(.seconds) s"' <<<"$payload"
}

# The time since the machine started: it never jumps, and goes on while this process is stopped.
clock() {
	local up
	read -r up _ </proc/uptime
	echo "${up/./}"
}

seconds() { printf '%d.%02d' $(($1 / 100)) $(($1 % 100)); }
runs() { kill -0 "$1" 2>/dev/null; }

# call PATH BODY TIMEOUT UNTIL: sends the same call until there is an answer (in $status, $answer and $retry_after; $sent
# is when it was sent). Fails when there is none at the time UNTIL, and when a lease call is cut short by a shutdown.
call() {
	local request now longest=10 until=${4:-}
	while true; do
		sent=$(clock) status=000 answer=''
		: >"$work/answer_headers"
		curl -sS "$address$1" ${2:+--data-binary @-} -H "@$work/headers" --max-time "$(seconds "$3")" -o "$work/answer" \
			-D "$work/answer_headers" -w '%{http_code}\n' <<<"$2" >"$work/status" 2>/dev/null &
		request=$!
		if [[ $1 == /v1/leases ]]; then
			lease_call=$request
			[[ ! $draining ]] || kill -KILL "$request"
		fi
		# A signal to this shell ends the wait, not the call. The last one asks how it ended, or the shell would tell.
		{
			while runs "$request"; do wait "$request"; done
			wait "$request"
		} 2>/dev/null
		lease_call=''
		[[ $1 != /v1/leases || ! $draining ]] || return 1
		read -r status <"$work/status"
		# In seconds; as a date it is somebody else's, and passed over.
		retry_after=$(sed -n 's/^retry-after: *\([0-9]*\)\r*$/\1/Ip' "$work/answer_headers")
		if [[ ! $status =~ ^(000|408|429|5..)$ ]]; then
			answer=$(<"$work/answer")
			return 0
		fi
		sleep "$(seconds $((${retry_after:-0} * 100 + longest / 2 + RANDOM % (longest / 2))))"
		longest=$((longest < 500 ? longest * 2 : 1000))
		now=$(clock)
		((now < ${until:-now + 1} && (! draining || now < draining + drain + grace))) || return 1
	done
}

# stop PID: asks the handler and all that it has started to end, and makes them when the grace is over.
stop() {
	kill -TERM -- "-$1"
	sleep "$(seconds "$grace")" &
	wait -n "$1" $!
	kill -KILL -- "-$1" "-$!"
	wait "$1" $!
} 2>/dev/null

# watch PID ID LEASE_VERSION RENEWED: returns when the handler has ended; $reason says why it was told to stop, if it was.
watch() {
	local now renewed=$4
	reason=
	while runs "$1"; do
		now=$(clock)
		if [[ $reason ]]; then
			stop "$1"
		elif ((now >= renewed + lease)); then
			reason=lease_lost
		elif [[ $draining ]] && ((now >= draining + drain)); then
			reason=shutdown
		elif ((now < renewed + lease / 3)); then
			sleep 0.5 &
			wait -n "$1" $! 2>/dev/null
		elif call "/v1/jobs/$2/heartbeat" "{\"lease_version\": $3}" $((lease / 3)) $((renewed + lease)); then
			renewed=$sent
			case $status in
			200) [[ $(jq .cancel_requested <<<"$answer") != true ]] || reason=cancelled ;;
			*) reason=lease_lost ;;
			esac
		fi
	done
}

# end VERB BODY: ends the attempt of job $id; prints what became of the job.
end() {
	call "/v1/jobs/$id/$1" "$2" 3000
	case $status in
	200) echo "$id $(jq -r .state <<<"$answer")" ;;
	404 | 409) echo "$id lost" ;;
	400 | 413 | 422) [[ $1 == fail ]] || end fail "$(failure result_refused "$(jq -r .detail <<<"$answer")" false)" ;;
	*) echo "$id: $answer" >&2 ;;
	esac
}

failure() {
	jq -nc --argjson lease_version "$lease_version" --arg type "$1" --arg message "$2" --argjson retryable "${3:-true}" \
		'{$lease_version, error: {$type, $message}, $retryable}'
}

# run JOB RENEWED: from the lease, which counts from the time RENEWED, to the end of the attempt.
run() {
	local handler exit_code id lease_version reason body
	id=$(jq -r .id <<<"$1") lease_version=$(jq .lease_version <<<"$1")
	jq -c .payload <<<"$1" >"$work/payload"
	handle <"$work/payload" >"$work/result" 2>"$work/error" &
	handler=$!
	watch "$handler" "$id" "$lease_version" "$2"
	wait "$handler" 2>/dev/null
	exit_code=$?
	case $reason:$exit_code in
	lease_lost:*) echo "$id lost" ;; # Somebody else may have the job by now.
	*:0)
		if body=$(jq -cs --argjson lease_version "$lease_version" '{$lease_version, result: .[0]}' "$work/result"); then
			end complete "$body"
		else
			end fail "$(failure result_refused "the handler's output is not JSON" false)"
		fi
		;;
	cancelled:*) end fail "$(failure cancelled "told to stop")" ;;
	shutdown:*) end release "{\"lease_version\": $lease_version}" ;;
	*) end fail "$(failure "exit_$exit_code" "$(tail -c 2000 "$work/error" | tr -d '\0')")" ;;
	esac
}

exit_code=0
while [[ ! $draining ]]; do
	wish=$(jq -nc --arg worker_id "$worker_id" --arg queue "$queue" --arg request_id "$(</proc/sys/kernel/random/uuid)" \
		--argjson wait_seconds "$(seconds "$poll")" --argjson lease_seconds "$(seconds "$lease")" \
		'{$worker_id, queues: [$queue], max_jobs: 1, $wait_seconds, $lease_seconds, $request_id}')
	call /v1/leases "$wish" $((poll + 1000)) $(($(clock) + lease)) || continue
	if [[ $status != 200 ]]; then
		echo "$answer" >&2
		exit_code=1
		break
	fi
	job=$(jq -c '.jobs[0] // empty' <<<"$answer")
	if [[ $job ]]; then run "$job" "$sent"; elif [[ $retry_after ]]; then sleep "$retry_after"; fi
done

# What is held now came with an answer that nobody has read.
if call "/v1/leases?worker_id=$worker_id" "" "$grace" $(($(clock) + grace)) && [[ $status == 200 ]]; then
	while read -r id lease_version; do
		end release "{\"lease_version\": $lease_version}"
	done < <(jq -r '.leases[] | "\(.job_id) \(.lease_version)"' <<<"$answer")
fi
exit "$exit_code"
