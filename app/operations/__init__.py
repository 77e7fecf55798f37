"""One function a verb: it opens the transaction, decides, writes, commits, then tells who waits.

    context     what every verb is given: the database, retention, and the signals
    submit      submit jobs, single and batch, with idempotency keys and parents
    lease       grant ready jobs to polls
    heartbeat   extend leases
    settle      complete, fail and release, and the repeats of each
    refusals    why a presented lease_version is not held
    patience    asks again for a lease that an application has locked
    manage      cancel, redrive and edit one job
    expire      end leases whose clock ran out
    upkeep      promote due jobs, make and drop partitions, forget old keys
    coalescer   joins single calls that arrive while a statement is in flight
    polls       parked lease calls: registered before the claim that finds nothing
    wakeups     tells parked polls, here and on other replicas, that there is work
    finishes    parked readers of one job's end
    rounds      a statement writes a row once
    server_clock the database's time, between two looks at it

A verb returns after its commit: an answer means committed.
"""
