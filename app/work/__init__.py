"""``fencepost work``: runs a command for each job. Only the command line imports it.

    runner ──▶ fencepost.Worker ──▶ attempt, one for each job
                                     │
         environment ── what the command gets      process ── its process group
         report      ── what it says on fd 3       guard   ── kills the groups when this process is killed
         output      ── stdout and stderr          outcome ── what its end means for the job
         streams     ── pipes without tasks        watch   ── all that is waited for, behind one reader

Leases, heartbeats and ends are the client's; this room knows commands. It runs in the worker's loop for
handlers, in a thread of its own.
"""
