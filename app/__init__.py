"""Fencepost: jobs arrive by POST, leases carry a fencing token.

Rooms, top to bottom; imports go down only (held by import-linter):

    cli          the command line; the only reader of argv
    serving      one server process           connections  a client's connection: time, bounds, framing
    main         create_app: the composition root
    api          HTTP words           background   when passes run
    operations   one function a verb; owns the transaction
    store        every SQL statement; never commits
    domain       pure decisions and values
    settings     one frozen Settings; the only reader of the environment
    deadlines    how long a client may take
    embedded     the bundled PostgreSQL; used by cli and tests
"""
