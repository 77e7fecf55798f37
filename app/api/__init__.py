"""HTTP words, and only here.

service     what the routes are given: coalescers, polls, settings
application FastAPI behind a door of our own
dispatch    from a method and a path to the route, before FastAPI is asked
time_limits how long a part of a call may take
routing     one declaration a route: checks, limits, OpenAPI
bodies      a body's bytes, bounded, as strict JSON
callers     who calls, by which API key, and may they do this
parameters  query strings and headers, strict
schemas     what a request may say (msgspec; the source of the OpenAPI document too)
answers     what an answer looks like
wording     msgspec's sentences in the words of JSON
requests    schemas -> domain
views       domain -> answers
jobs        produce and operate: /v1/jobs
leases      work: /v1/leases
holders     heartbeat, complete, fail, release, verify; one and many
health      livez, readyz
problems    every refusal as application/problem+json
handlers    what is raised on the way, as problems
cursors     where a page ended, bound to its filters
middleware  request ids, the handler of last resort, API keys at the door
openapi     the document
links       what an answer leads to, for the document
"""
