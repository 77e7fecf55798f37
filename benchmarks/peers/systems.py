"""One entry a system: how it runs, its settings, and when its queue is empty.

`settings` is copied into the report, so it names what `conf` holds, and why where it is not the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Runtime = Literal["checkout", "python", "python312", "node", "go"]
Store = Literal["postgres", "redis", "beanstalkd"]


@dataclass(frozen=True, slots=True)
class Backlog:
    """How a table of a million rows is made of a thousand: SQL copies what the system itself has written.

    `fresh` gives the columns that must differ an expression; a column `id` or `msg_id` without one is left to
    its sequence. Rows that belong to a job in other tables are added by `companions`.
    """

    table: str
    fresh: Mapping[str, str] = field(default_factory=dict)
    companions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What the driver must know of a system.

    `package` is its name at its registry. `conf` holds for throughput; `pickup_conf` goes on top of it for
    the latency of an idle worker, `paced_conf` on top of both at a fixed rate. `unfinished` is a query that
    gives a row while a job is not finished; `{n}` in it is the number of jobs that were ever enqueued.
    `finished` selects the finished rows of the backlog's table. `backlog` None means that every row is made
    by the system's own calls. `most_jobs` keeps a slow system's drain short, `most_backlog_jobs` the repeated
    ones.
    """

    name: str
    runtime: Runtime
    package: str
    adapter: str
    settings: str
    store: Store = "postgres"
    conf: Mapping[str, Any] = field(default_factory=dict)
    pickup_conf: Mapping[str, Any] | None = None
    paced_conf: Mapping[str, Any] | None = None
    schema: str = "public"
    unfinished: str | None = None
    finished: str | None = None
    keeps_finished: bool = False
    backlog: Backlog | None = None
    most_jobs: int = 1_000_000
    most_backlog_jobs: int = 1_000_000
    drain_only: bool = False
    has_bulk: bool = True

    @property
    def is_service(self) -> bool:
        """Whether adapters talk to a service that the driver has to start."""
        return self.runtime == "checkout"


_FENCEPOST_UNFINISHED = "SELECT 1 FROM fencepost.ready UNION ALL SELECT 1 FROM fencepost.leases LIMIT 1"
_GRAPHILE: dict[str, Any] = {
    "runtime": "node",
    "package": "graphile-worker",
    "adapter": "graphile_worker_queue.mjs",
    "schema": "graphile_worker",
    "unfinished": "SELECT 1 FROM graphile_worker._private_jobs LIMIT 1",
    "backlog": Backlog("graphile_worker._private_jobs"),
}
# Procrastinate writes these with each job and each change of its state.
_PROCRASTINATE_EVENTS = """
INSERT INTO procrastinate_events (job_id, type, at)
SELECT job.id, event.type, now()
FROM procrastinate_jobs job
CROSS JOIN (VALUES ('deferred'::procrastinate_job_event_type), ('started'), ('succeeded')) event (type)
WHERE job.status = 'succeeded' OR event.type = 'deferred'
ON CONFLICT DO NOTHING
"""
_DBOS_INPUTS = """
INSERT INTO dbos.workflow_input (workflow_uuid, inputs)
SELECT workflow_uuid, (SELECT inputs FROM dbos.workflow_input LIMIT 1) FROM dbos.workflow_status
ON CONFLICT DO NOTHING
"""
_DBOS_OUTPUTS = """
INSERT INTO dbos.workflow_output (workflow_uuid)
SELECT workflow_uuid FROM dbos.workflow_status WHERE status = 'SUCCESS'
ON CONFLICT DO NOTHING
"""
_AWA_UNFINISHED = """
SELECT 1 WHERE (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
  + (SELECT count(*) FROM awa.done_entries)
  + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups) < {n}
"""

_ALL: tuple[System, ...] = (
    System(
        name="fencepost",
        runtime="checkout",
        package="fencepost",
        adapter="fencepost_queue",
        schema="fencepost",
        unfinished=_FENCEPOST_UNFINISHED,
        keeps_finished=True,
        conf={"connections": 4, "max_jobs": 1000, "combined": True},
        pickup_conf={"connections": 4, "max_jobs": 10},
        paced_conf={"connections": 2, "max_jobs": 1000, "combined": True},
        settings="HTTP on loopback; worker: 4 connections, a call completes up to 1,000 jobs and leases the "
        "next ones; latency: 4 parked polls of 10 jobs, at a fixed rate 2 of 1,000",
    ),
    System(
        name="fencepost-single",
        runtime="checkout",
        package="fencepost",
        adapter="fencepost_queue",
        schema="fencepost",
        unfinished=_FENCEPOST_UNFINISHED,
        keeps_finished=True,
        drain_only=True,
        conf={"connections": 16, "max_jobs": 1, "combined": True},
        settings="HTTP on loopback; worker: 16 connections, each call completes one job and leases the next",
    ),
    System(
        name="fencepost-two-calls",
        runtime="checkout",
        package="fencepost",
        adapter="fencepost_queue",
        schema="fencepost",
        unfinished=_FENCEPOST_UNFINISHED,
        keeps_finished=True,
        drain_only=True,
        conf={"connections": 16, "max_jobs": 1},
        settings="HTTP on loopback; worker: 16 connections, one lease call and one complete call a job",
    ),
    System(
        name="graphile-worker",
        conf={
            "worker": {
                "localQueue": {"size": 500, "refetchDelay": {"durationMs": 10}},
                "completeJobBatchDelay": 0,
                "failJobBatchDelay": 0,
            }
        },
        settings="concurrentJobs 24, maxPoolSize 25, localQueue.size 500 (refetchDelay 10 ms), "
        "completeJobBatchDelay 0, failJobBatchDelay 0: the preset of its own performance test",
        **_GRAPHILE,
    ),
    System(
        name="graphile-worker-default",
        drain_only=True,
        settings="concurrentJobs 24, no local queue, no batched completion: as installed",
        **_GRAPHILE,
    ),
    System(
        name="pg-boss",
        runtime="node",
        package="pg-boss",
        adapter="pg_boss_queue.mjs",
        schema="pgboss",
        unfinished="SELECT 1 FROM pgboss.job WHERE name = 'bench' AND state < 'completed' LIMIT 1",
        finished="state = 'completed'",
        keeps_finished=True,
        backlog=Backlog("pgboss.job_common", fresh={"id": "gen_random_uuid()"}),
        conf={"work": {"batchSize": 1000, "localConcurrency": 2}},
        pickup_conf={"notify": True, "work": {"batchSize": 10}},
        paced_conf={"work": {"batchSize": 100}},
        settings="batchSize 1000, localConcurrency 2 (of 100, 1000 and 2 x 1000 the fastest), "
        "burstWhenBatchFull, pollingIntervalSeconds 0.5; latency: LISTEN/NOTIFY, which has to be asked for, "
        "batchSize 10, at a fixed rate 100",
    ),
    System(
        name="procrastinate",
        runtime="python",
        package="procrastinate",
        adapter="procrastinate_queue",
        unfinished="SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1",
        finished="status = 'succeeded'",
        keeps_finished=True,
        backlog=Backlog("procrastinate_jobs", companions=(_PROCRASTINATE_EVENTS,)),
        most_backlog_jobs=3000,
        conf={"concurrency": 30, "pool": 10},
        settings="concurrency 30, pool 10, LISTEN/NOTIFY, delete_jobs never",
    ),
    System(
        name="pgqueuer",
        runtime="python",
        package="pgqueuer",
        adapter="pgqueuer_queue",
        unfinished="SELECT 1 FROM pgqueuer LIMIT 1",
        backlog=Backlog("pgqueuer"),
        conf={"batch": 1000},
        pickup_conf={"batch": 10},
        paced_conf={"batch": 100},
        settings="asyncpg, batch_size 1000 (of 10, 100 and 1000 the fastest); latency: batch_size 10 "
        "(default), at a fixed rate 100",
    ),
    System(
        name="oban-py",
        runtime="python312",
        package="oban",
        adapter="oban_queue",
        unfinished="SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing', 'retryable') LIMIT 1",
        finished="state = 'completed'",
        keeps_finished=True,
        backlog=Backlog("oban_jobs"),
        conf={"limit": 500},
        pickup_conf={"limit": 20},
        paced_conf={"limit": 100},
        settings="limit 500, pool 10; latency: limit 20, at a fixed rate 100",
    ),
    System(
        name="chancy",
        runtime="python",
        package="chancy",
        adapter="chancy_queue",
        unfinished="SELECT 1 FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed') LIMIT 1",
        finished="state = 'succeeded'",
        keeps_finished=True,
        backlog=Backlog("chancy_jobs", fresh={"id": "gen_random_uuid()"}),
        conf={"concurrency": 1000, "poll_seconds": 1},
        pickup_conf={"concurrency": 100, "poll_seconds": 5},
        settings="AsyncExecutor, concurrency 1000, eager_polling, polling_interval 1 s; latency: concurrency "
        "100, polling_interval 5 s (default) with notifications",
    ),
    System(
        name="awa",
        runtime="python",
        package="awa-pg",
        adapter="awa_queue",
        schema="awa",
        unfinished=_AWA_UNFINISHED,
        conf={"max_workers": 1024, "claim_batch_size": 512, "pool": 40},
        pickup_conf={"max_workers": 64},
        settings="max_workers 1024, claim_batch_size 512, pool 40, completion batch 512 (default), poll 200 "
        "ms with LISTEN/NOTIFY; bulk by COPY; latency: max_workers 64",
    ),
    System(
        name="dbos",
        runtime="python",
        package="dbos",
        adapter="dbos_queue",
        schema="dbos",
        unfinished="SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1",
        finished="status = 'SUCCESS'",
        keeps_finished=True,
        backlog=Backlog(
            "dbos.workflow_status",
            fresh={"workflow_uuid": "gen_random_uuid()::text"},
            companions=(_DBOS_INPUTS, _DBOS_OUTPUTS),
        ),
        most_jobs=10_000,
        most_backlog_jobs=3000,
        conf={"concurrency": 300, "poll_seconds": 0.05, "pool": 20},
        settings="sync workflow, worker_concurrency 300, polling_interval_sec 0.05 (default 1), pool 20; no "
        "bulk call: 1,000 enqueues in one transaction",
    ),
    System(
        name="pgmq",
        runtime="python",
        package="pgmq",
        adapter="pgmq_queue",
        schema="pgmq",
        unfinished="SELECT 1 FROM pgmq.q_bench LIMIT 1",
        backlog=Backlog("pgmq.q_bench"),
        conf={"loops": 4, "batch": 500},
        pickup_conf={"loops": 1, "batch": 10, "poll_milliseconds": 10},
        paced_conf={"batch": 100},
        settings="installed from SQL; worker: 4 read/delete loops, batch 500; latency: 1 loop, batch 10, "
        "read_with_poll each 10 ms (default 100), at a fixed rate batch 100",
    ),
    System(
        name="river",
        runtime="go",
        package="github.com/riverqueue/river",
        adapter="river",
        unfinished="SELECT 1 FROM river_job WHERE state IN ('available', 'running', 'retryable') LIMIT 1",
        finished="state = 'completed'",
        keeps_finished=True,
        backlog=Backlog("river_job"),
        conf={"max_workers": 2000, "fetch_cooldown_milliseconds": 2, "fetch_poll_interval_milliseconds": 20},
        pickup_conf={
            "max_workers": 100,
            "fetch_cooldown_milliseconds": 2,
            "fetch_poll_interval_milliseconds": 1000,
        },
        settings="MaxWorkers 2000, FetchCooldown 2 ms, FetchPollInterval 20 ms (those of its own benchmark), "
        "batching completer (default), pool 10; bulk by InsertManyFast (COPY); latency: MaxWorkers 100, "
        "FetchCooldown 2 ms, FetchPollInterval 1 s (default) with LISTEN/NOTIFY",
    ),
    System(
        name="bullmq",
        runtime="node",
        package="bullmq",
        adapter="bullmq_queue.mjs",
        store="redis",
        conf={"concurrency": 100},
        settings="Redis with AOF, fsync each second; concurrency 100",
    ),
    System(
        name="rq",
        runtime="python",
        package="rq",
        adapter="rq_queue",
        store="redis",
        most_jobs=3000,
        settings="Redis with AOF, fsync each second; SimpleWorker, which does not fork, one process",
    ),
    System(
        name="beanstalkd",
        runtime="python",
        package="greenstalk",
        adapter="beanstalkd_queue",
        store="beanstalkd",
        has_bulk=False,
        settings="binlog with fsync each 50 ms (default); one synchronous worker loop",
    ),
)

SYSTEMS: Mapping[str, System] = {system.name: system for system in _ALL}

# Those that come close to somebody's choice, and River as the best known in its language.
SHORT = (
    "fencepost",
    "fencepost-single",
    "fencepost-two-calls",
    "graphile-worker",
    "graphile-worker-default",
    "pg-boss",
    "pgqueuer",
    "oban-py",
    "awa",
    "pgmq",
    "river",
)
