"""The conformance suite for clients: a scripted server, cases as data, and a judge.

cases/*.yaml     what a client has to do, one file for each section of docs/worker-protocol.md
case             a case as read from its file; refuses what it does not know
contract         is this request one that the service would take? (openapi.json)
service          the jobs and leases of one case, answered as the service answers
faults           answers that get lost, come late or are refused, as the case asks for
server           HTTP on a loopback port, with every call written down
record           what was written down: calls, events of the adapter, acts of the script
director         plays a case's script: offers jobs, takes leases away, sends signals
stage            one case with one adapter: server, process, script, record
moments          finds the calls and events that an expectation speaks of
judge, rules     the verdict: what the case expects, and what always holds
adapters         the clients under test, from adapters.yaml
suite, report    all cases with all adapters, several at once, and the table
"""
