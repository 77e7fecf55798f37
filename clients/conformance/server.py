"""The scripted server: HTTP/1.1 on a loopback port, with every call written down.

It is written out here, on bare streams, because it has to break connections where a library would not let it.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from clients.conformance.contract import Contract, Refused
from clients.conformance.faults import Fault, Faults
from clients.conformance.record import ANSWERED, CLOSED, LOST, OPEN, RESET, Call, Item, Record
from clients.conformance.service import Answer, Service, answer_call, at, encode, problem_answer

REFUSED_CODES = {
    400: "malformed_json",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    408: "request_timeout",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
    429: "unavailable",
    500: "internal_error",
    503: "unavailable",
}
MAX_BODY_BYTES = 16 * 2**20


class Gone(Exception):
    """The client has closed the connection."""


class Connection:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ahead = b""

    async def request(self) -> tuple[str, str, dict[str, str], bytes]:
        """Return the next request: method, target, headers in lower case, body. Raises Gone at the end."""
        try:
            head = (self._ahead + await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self._ahead = b""
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines if line)
            }
            return method, target, headers, await self._body(headers)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Gone from error

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(min(int(headers.get("content-length", 0)), MAX_BODY_BYTES))
        body = b""
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return body

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        try:
            while byte := await self._reader.read(1):
                self._ahead += byte
        except ConnectionError:
            return

    async def send(self, answer: Answer) -> None:
        body = encode(answer.body)
        kind = "application/json" if answer.status < 400 else "application/problem+json"
        headers = {"Content-Length": str(len(body)), "X-Request-Id": "conformance", **answer.headers}
        if answer.status == 204:
            del headers["Content-Length"]
        elif body:
            headers["Content-Type"] = kind
        lines = [
            f"HTTP/1.1 {answer.status} Scripted",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise Gone from error

    def abort(self) -> None:
        self._writer.transport.abort()


class Server:
    """Serves one case. ``run`` is the number of the adapter's process, counted by the stage."""

    def __init__(
        self,
        service: Service,
        faults: Faults,
        record: Record,
        contract: Contract,
        *,
        clock: Callable[[], float],
        api_key: str | None,
    ) -> None:
        self.service = service
        self.faults = faults
        self.run = 1
        self._record = record
        self._contract = contract
        self._clock = clock
        self._api_key = api_key
        self._away: Fault | None = None
        self._listener: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.port = 0
        self.errors: list[Exception] = []

    async def start(self) -> None:
        self._reserved = _bound(self.port)
        self.port = self._reserved.getsockname()[1]
        self._listener = await asyncio.start_server(self._serve, sock=self._reserved)

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self.hang_up()
        if self._reserved is not None:
            self._reserved.close()

    async def hang_up(self) -> None:
        """Break every connection."""
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def go_away(self, fault: Fault | None) -> None:
        """Answer everything with this refusal from now on; with None, refuse connections."""
        self._away = fault
        if fault is None and self._listener is not None:
            self._listener.close()
            self._listener = None
            await self.hang_up()
            # Bound and not listening: connections are refused, and nobody else gets the port.
            self._reserved = _bound(self.port)
        self.wake()

    async def come_back(self) -> None:
        self._away = None
        if self._listener is None and self._reserved is not None:
            self._listener = await asyncio.start_server(self._serve, sock=self._reserved)
        self.wake()

    def wake(self) -> None:
        """Look again whether parked calls have something to lease."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (asyncio runs this function as a task)
        self._connections.add(task)
        connection = Connection(reader, writer)
        try:
            with contextlib.suppress(Gone):
                while True:
                    method, target, headers, raw = await connection.request()
                    await self._answer(connection, method, target, headers, raw)
                    if headers.get("connection", "").lower() == "close" or writer.is_closing():
                        break
        except asyncio.CancelledError:
            connection.abort()
        except Exception as error:  # noqa: BLE001 (told by the stage: a task's own end is seen by nobody)
            self.errors.append(error)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(
        self, connection: Connection, method: str, target: str, headers: dict[str, str], raw: bytes
    ) -> None:
        call = Call(
            at=self._clock(), run=self.run, verb=f"{method} {target}", target=target, headers=headers, raw=raw
        )
        self._record.add(call)
        try:
            fault, answer = await self._beside(connection, self._done(call, method))
            if fault is not None and (fault.lost or fault.reset):
                call.outcome = LOST if fault.lost else RESET
                connection.abort()
                return
            # Before it is sent: what the client does next must not be written down first.
            call.outcome = ANSWERED if fault is None or fault.status is None else str(answer.status)
            call.ended_at = self._clock()
            await connection.send(answer)
        except (Gone, asyncio.CancelledError):
            call.outcome = CLOSED if call.outcome in (OPEN, ANSWERED) else call.outcome
            raise
        finally:
            call.ended_at = self._clock()
            if call.rider is not None:
                call.rider.outcome, call.rider.ended_at = call.outcome, call.ended_at

    @staticmethod
    async def _beside(connection: Connection, work: Any) -> tuple[Fault | None, Answer]:
        """Do the work unless the client goes first; raise Gone then."""
        doing = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(connection.gone())
        try:
            await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Gone
            found: tuple[Fault | None, Answer] = doing.result()
            return found
        finally:
            for task in (doing, watching):
                task.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)

    async def _done(self, call: Call, method: str) -> tuple[Fault | None, Answer]:
        """Do the call, as far as its fault lets it; return the fault and the answer."""
        try:
            self._read(call, method)
        except Refused as refused:
            call.malformed = refused.detail
            return Fault(to=call.verb, status=refused.status), problem_answer(refused.status, refused.code)
        if self._api_key is not None and call.headers.get("authorization") != f"Bearer {self._api_key}":
            fault: Fault | None = Fault(to=call.verb, status=401)
        else:
            fault = self._away or self.faults.take(call)
        if fault is None:
            return None, await self._answer_of(call)
        if fault.hang:
            await asyncio.Event().wait()
        if fault.status is not None:
            for item in call.items:
                item.status = "refused"
            return fault, _refusal(fault)
        if fault.reset:
            return fault, Answer(500)
        if fault.empty:
            answer = Answer(200, {"jobs": [], "server_time": at(self._clock())})
        else:
            answer = await self._answer_of(call)
        await asyncio.sleep(fault.late_seconds)
        if fault.retry_after is not None:
            answer.headers["Retry-After"] = str(fault.retry_after)
        return fault, answer

    def _read(self, call: Call, method: str) -> None:
        """Fill in the verb and the items of a call; raise Refused where the service would refuse it."""
        parts = urlsplit(call.target)
        call.verb, job_id, schema = self._contract.find(method, parts.path)
        self._contract.check_headers(call.verb, call.headers)
        call.body = self._contract.parse(call.raw, call.headers, schema)
        if call.verb == "leases":
            if list(dict(parse_qsl(parts.query))) != ["worker_id"]:
                raise Refused(422, "invalid_request", "GET /v1/leases takes one parameter, worker_id")
        elif call.verb == "submit":
            key = call.headers.get("idempotency-key")
            # In the record the key stands where a batch has it.
            call.body = {**call.body, "idempotency_key": key.strip('"') if key else None}
            call.items = [self._child(call.body)]
        elif call.verb == "submit_many":
            call.items = [self._child(body) for body in call.body["jobs"]]
        elif call.verb == "lease":
            # In the record the completions of a lease call are a call of their own.
            if bodies := call.body.get("complete"):
                items = [self._item(body["job_id"], body) for body in bodies]
                call.rider = replace(call, verb="complete", body={"items": bodies}, items=items)
                self._record.add(call.rider)
        elif call.verb != "job":
            bodies = call.body.get("items", [{"job_id": job_id, **call.body}])
            call.items = [self._item(body.get("job_id"), body) for body in bodies]

    def _child(self, body: dict[str, Any]) -> Item:
        """Return a job to be created: it is an item of the lease under which it is, if it has a parent."""
        parent = body.get("parent") or {}
        job_id = parent.get("job_id")
        return Item(job_id, self.service.letter(job_id), parent.get("lease_version"), body)

    def _item(self, job_id: str | None, body: dict[str, Any]) -> Item:
        rest = {key: value for key, value in body.items() if key not in ("job_id", "lease_version")}
        return Item(
            job_id=job_id, job=self.service.letter(job_id), version=body.get("lease_version"), body=rest
        )

    async def _answer_of(self, call: Call) -> Answer:
        if call.verb != "lease":
            return answer_call(self.service, call, now=self._clock())
        completed = {}
        if call.rider is not None:
            results = [self.service.hold("complete", item, now=self._clock()) for item in call.rider.items]
            completed = {"completed": results}
        until = self._clock() + call.body.get("wait_seconds", 0)
        while True:
            changed = self._changed
            jobs = self.service.lease(call.body, now=self._clock())
            left = until - self._clock()
            if jobs or left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
            if self._away is not None and self._away.status is not None:
                break
        call.granted = [(self.service.letter(job["id"]) or "", job["lease_version"]) for job in jobs]
        return Answer(200, {"jobs": jobs, "server_time": at(self._clock()), **completed})


def _refusal(fault: Fault) -> Answer:
    answer = problem_answer(fault.status or 500, REFUSED_CODES[fault.status or 500])
    if fault.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if fault.retry_after is not None:
        answer.headers["Retry-After"] = str(fault.retry_after)
    return answer


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.settimeout(0)
    return bound
