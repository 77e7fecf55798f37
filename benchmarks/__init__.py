"""Re-runnable measurements on the bundled PostgreSQL, fsync on, load generator on the same machine.

python -m benchmarks           the table of this service, interleaved rounds, medians
python -m benchmarks.overhead  single enqueues, beside a bare ASGI route with the same statement
python -m benchmarks.parked    what a thousand parked polls cost, and how a burst reaches them
python -m benchmarks.soak      minutes of steady load; what the service takes has to stay what it was
python -m benchmarks.growth    what a job costs when there are many, and what a claim costs under stress

load       a small keep-alive HTTP client, so that the generator is not what is measured
target     the service in a process of its own, with coalescing on or off
bare       the least that could answer one route, in its place
running    starts either on a database of its own
measures   one function a measurement
churn      the load of the soak: producers, workers, polls that are cut
footprint  what the service takes of the machine and of its database
flatness   what the soak calls flat
ground     a database of its own, and the operations on it without HTTP
stocks     tables filled by SQL
meter      what calls take: time, CPU of the backend, log
verbs      a job in each verb, beside many others
strain     claims among many queues, priorities and scheduled jobs
pinned     churn under an old snapshot
pools      the service with one and two processes, and pools of several sizes
"""
