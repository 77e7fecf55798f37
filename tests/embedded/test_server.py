"""The bundled server, for real: every test has a data folder of its own, with fsync off but where needed."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from app.embedded import supervisor as supervisor_module
from app.embedded.binaries import BundledServerError
from app.embedded.server import BundledServer
from app.embedded.supervisor import Supervisor

pytestmark = pytest.mark.slow

_FAST = {"fsync": "off", "shared_buffers": "16MB"}
_LIMIT_SECONDS = 60.0
_OTHER_PROCESS = """
import sys
from pathlib import Path
from app.embedded.server import BundledServer

server = BundledServer(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="data_dir")
def _data_dir() -> Iterator[Path]:
    """A folder with a short path: that of a socket has little room."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-test-"))
    yield folder
    BundledServer(folder / "data").stop()
    shutil.rmtree(folder)


@pytest.fixture(name="server")
def _server(data_dir: Path) -> BundledServer:
    return BundledServer(data_dir / "data", settings=_FAST)


@pytest.fixture(name="start_elsewhere")
def _start_elsewhere(data_dir: Path) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Start the server of the data folder in a process of its own, whose first line of output is the pid."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", _OTHER_PROCESS, str(data_dir / "data")]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def _pid(server: BundledServer) -> int:
    pid = server.pid
    assert pid is not None
    return pid


def _wait_for_another(server: BundledServer, pid: int) -> None:
    _wait_until(lambda: server.pid not in (None, pid))


def _first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _ask(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_new_folder_becomes_a_durable_utf8_database(data_dir: Path) -> None:
    server = BundledServer(data_dir / "new" / "data")
    try:
        url = server.start()
        assert str(_ask(url, "SHOW server_version")).startswith("18.")
        assert _ask(url, "SHOW fsync") == "on"
        assert _ask(url, "SHOW server_encoding") == "UTF8"
        assert _ask(url, "SELECT datlocale FROM pg_database WHERE datname = current_database()") == "C.UTF-8"
        assert _ask(url, "SHOW listen_addresses") == ""
    finally:
        server.stop()


def test_the_settings_of_the_caller_win(server: BundledServer) -> None:
    assert _ask(server.start(), "SHOW fsync") == "off"


def test_sqlalchemy_understands_the_url(server: BundledServer) -> None:
    engine = create_engine(server.start().replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


def test_only_the_owner_reaches_the_socket_and_the_data(server: BundledServer, data_dir: Path) -> None:
    server.start()
    owner = (data_dir / "data" / "postgres").stat().st_uid
    for name in ("run", "postgres"):
        status = (data_dir / "data" / name).stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert status.st_uid == owner
    assert owner != 0


def test_the_server_is_a_direct_child_without_the_environment_of_the_service(
    server: BundledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_API_KEYS", "a:work:secret")
    monkeypatch.setenv("PGPORT", "9999")
    url = server.start()
    process = Path("/proc") / str(server.pid)
    assert f"PPid:\t{os.getpid()}\n" in (process / "status").read_text()
    assert b"secret" not in (process / "environ").read_bytes()
    assert _ask(url, "SELECT 1") == 1


def test_a_running_server_is_adopted(server: BundledServer, data_dir: Path) -> None:
    url = server.start()
    other = BundledServer(data_dir / "data", settings=_FAST)
    assert other.start() == url
    assert other.pid == server.pid
    assert other.is_adopted
    assert not server.is_adopted
    other.stop()
    assert server.pid is None


def test_stop_ends_the_server_and_may_be_repeated(server: BundledServer) -> None:
    server.start()
    pid = server.pid
    server.stop()
    server.stop()
    assert server.pid is None
    assert not (Path("/proc") / str(pid)).exists()
    assert not server.ensure_running()


def test_data_and_url_outlive_stop_and_start(server: BundledServer) -> None:
    url = server.start()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    server.stop()
    assert server.start() == url
    assert _ask(url, "SELECT answer FROM kept") == 42


def test_a_killed_server_runs_again_with_what_was_committed(data_dir: Path) -> None:
    server = BundledServer(data_dir / "data")
    url = server.start()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        connection.commit()
        pid = _pid(server)
        # An open session makes the restart wait until the backend has let go of the shared memory.
        os.kill(pid, signal.SIGKILL)
        _wait_until(lambda: server.pid is None)
        # For an instant it has left its folder, and is not ended yet.
        _wait_until(server.ensure_running)
    assert not server.ensure_running()
    assert server.pid not in (None, pid)
    assert _ask(url, "SELECT answer FROM kept") == 42


def test_a_server_ends_when_its_parent_is_killed(
    server: BundledServer, start_elsewhere: Callable[[], "subprocess.Popen[str]"]
) -> None:
    parent = start_elsewhere()
    assert int(_first_line(parent)) == server.pid
    parent.kill()
    parent.wait()
    _wait_until(lambda: server.pid is None)


def test_a_start_right_after_the_parent_was_killed_gives_a_server_that_stays(
    server: BundledServer, start_elsewhere: Callable[[], "subprocess.Popen[str]"]
) -> None:
    parent = start_elsewhere()
    orphan = int(_first_line(parent))
    parent.kill()
    url = server.start()
    parent.wait()
    assert server.pid != orphan
    assert not server.is_adopted
    assert _ask(url, "SELECT 1") == 1


def test_first_starts_at_the_same_time_share_one_server(
    start_elsewhere: Callable[[], "subprocess.Popen[str]"],
) -> None:
    processes = [start_elsewhere() for _ in range(4)]
    pids = {_first_line(process) for process in processes}
    assert len(pids) == 1
    assert pids.pop().isdigit()


def test_a_first_start_that_was_cut_short_leaves_nothing_in_the_way(
    server: BundledServer, data_dir: Path
) -> None:
    partial = data_dir / "data" / "postgres.partial"
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    assert _ask(server.start(), "SELECT 1") == 1
    assert not partial.exists()


def test_a_pid_file_whose_number_belongs_to_another_program_does_not_block_the_start(
    server: BundledServer, data_dir: Path
) -> None:
    server.start()
    pid_file = data_dir / "data" / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    shutil.chown(pid_file, pid_file.parent.stat().st_uid)
    assert server.pid is None
    assert _ask(server.start(), "SELECT 1") == 1


@pytest.mark.parametrize("name", ["postgres/postmaster.pid", "run/.s.PGSQL.5432.lock"])
@pytest.mark.parametrize("clock_went_back_seconds", [0, 600])
def test_an_empty_lock_file_of_a_server_killed_in_its_start_does_not_block_the_next(
    server: BundledServer, data_dir: Path, name: str, clock_went_back_seconds: int
) -> None:
    server.start()
    server.stop()
    path = data_dir / "data" / name
    path.touch()
    written_at = path.stat().st_mtime + clock_went_back_seconds
    os.utime(path, (written_at, written_at))
    shutil.chown(path, path.parent.stat().st_uid)
    assert _ask(server.start(), "SELECT 1") == 1


def test_a_path_too_long_for_a_socket_is_served_through_a_temporary_folder(data_dir: Path) -> None:
    folder = data_dir / ("long" * 30)
    server = BundledServer(folder, settings=_FAST)
    try:
        url = server.start()
        assert str(folder.name) not in url
        assert _ask(url, "SELECT 1") == 1
        socket_folder = Path(str(_ask(url, "SHOW unix_socket_directories")).strip('"'))
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700
    finally:
        server.stop()
    assert not socket_folder.exists()


@pytest.mark.parametrize("name", ["PG_VERSION", "postgres/PG_VERSION"])
def test_data_of_another_version_is_refused_and_left_alone(
    server: BundledServer, data_dir: Path, name: str
) -> None:
    server.start()
    server.stop()
    path = data_dir / "data" / name
    path.write_text("17\n")
    with pytest.raises(BundledServerError) as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert path.read_text() == "17\n"


def test_a_server_that_cannot_start_says_why_in_one_line(data_dir: Path) -> None:
    server = BundledServer(data_dir / "data", settings={**_FAST, "shared_buffers": "nonsense"})
    with pytest.raises(BundledServerError, match="shared_buffers") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert server.pid is None


def test_the_supervisor_restarts_a_server_that_died(server: BundledServer) -> None:
    url = server.start()
    supervisor = Supervisor(server, on_failure=lambda: None)
    supervisor.start()
    try:
        for _ in range(3):
            pid = _pid(server)
            os.kill(pid, signal.SIGKILL)
            _wait_for_another(server, pid)
        _wait_until(lambda: _answers(url))
        assert supervisor.failure is None
    finally:
        supervisor.stop(timeout_seconds=_LIMIT_SECONDS)
    assert server.pid is None


def test_the_supervisor_gives_up_on_a_server_that_cannot_be_kept_running(
    server: BundledServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_LONGEST_PAUSE_SECONDS", 0.02)
    server.start()
    calls: list[str] = []
    supervisor = Supervisor(server, on_failure=lambda: calls.append("failed"))
    (data_dir / "data" / "postgres" / "PG_VERSION").write_text("17\n")
    os.kill(_pid(server), signal.SIGKILL)
    supervisor.start()
    try:
        _wait_until(lambda: supervisor.failure is not None and bool(calls))
        assert calls == ["failed"]
    finally:
        supervisor.stop(timeout_seconds=_LIMIT_SECONDS)


def _answers(url: str) -> bool:
    try:
        return _ask(url, "SELECT 1") == 1
    except psycopg.OperationalError:
        return False
