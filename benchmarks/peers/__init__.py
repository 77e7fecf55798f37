"""Fencepost beside other queues on the same machine: python -m benchmarks.peers, or make bench-peers.

installs   fetches the systems into a work folder outside the repository
servers    a PostgreSQL 15 of its own, Redis and beanstalkd where present
stage      runs one operation of one system on a database made for it
systems    one entry a system: how it runs, its settings, and when its queue is empty
adapters   one process each: the same operations for every system
processes  an adapter or a Fencepost service as a process of the driver
databases  throw-away databases, and what PostgreSQL's counters say of them
measures   one generator a measurement, on empty tables
backlogs   the same drain with a million rows or an old snapshot in the way
floor      what pgbench does on a bare table
rounds     who is measured when
results    readings as JSON lines, their medians
report     the tables, as Markdown
plots      the pictures; the one module that needs matplotlib
"""
