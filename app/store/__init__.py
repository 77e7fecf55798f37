"""Every SQL statement, one constant a verb, above the function that runs it.

    engine         connections, their settings, and what a database in trouble is called
    schema         migrations, and whether the schema is the one this code was written for
    privileges     what a role of an application may do
    submissions    insert jobs, claim idempotency keys
    leases         lease, heartbeat, complete
    endings        the one way an attempt ends other than in success
    columns        what is stored compactly
    clocks         leases whose clock ran out
    lease_requests what a lease call with a request_id was answered
    jobs           cancel, redrive, edit
    schedule       move due jobs to ready
    reads          plain reads; the only module that api may import
    partitions     made ahead, dropped past retention
    notifications  LISTEN and NOTIFY
    doctor         what must hold of the whole schema

Functions take an open connection, never commit, and take lists: one item is a list of one.
The tables are drawn in migrations/versions/0002_jobs_stay.sql, the functions for applications in 0003.
"""
