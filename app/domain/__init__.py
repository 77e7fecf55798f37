"""Pure decisions and values: no clock, no randomness, no I/O.

job          states, outcomes and the frozen values that travel between rooms
caller       who calls, and what they may do
calls        what callers ask for
retention    how long finished things are kept
machine      what follows when an attempt ends; why a stale version is refused
retry        backoff
json_tree    strict JSON with its tokens kept
failure      failure reports, made storable whatever a worker sent
idempotency  request fingerprints
errors       one tree; each class a stable code
"""
