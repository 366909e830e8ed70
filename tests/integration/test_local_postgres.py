"""The embedded server under everything that happens to it: users, crashes, races, odd folders."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from registry import local_postgres
from registry._postgres import accounts, binaries, connection, logs, process
from registry.errors import LocalPostgresError
from registry.local_postgres import LocalPostgres, default_data_dir, stop_server

PROJECT = Path(__file__).resolve().parents[2]
FAST = {"fsync": "off"}
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="root only: it changes users")


@pytest.fixture(scope="module")
def stopped_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "pg"
    LocalPostgres(folder, settings=FAST).start().stop()
    return folder


@pytest.fixture
def data_dir(stopped_server: Path, tmp_path: Path) -> Iterator[Path]:
    """A data folder with a server's files, which saves making them again in every test."""
    folder = tmp_path / "pg"
    subprocess.run(["cp", "-a", stopped_server, folder], check=True)
    yield folder
    stop_server(folder)


@pytest.fixture
def new_dir(tmp_path: Path) -> Iterator[Path]:
    """A data folder that does not exist."""
    folder = tmp_path / "pg"
    yield folder
    stop_server(folder)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder every user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="toolrag-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def ask(url: str, query: str) -> object:
    with connect(url) as connected:
        row = connected.execute(query).fetchone()
    assert row is not None
    return row[0]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s until {what}"
        time.sleep(0.02)


def server_pid(data_dir: Path) -> int:
    pid = LocalPostgres(data_dir).status().pid
    assert pid is not None
    return pid


def is_gone(pid: int) -> bool:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return after_name.split()[0] == "Z"  # ended, and init has not got round to it


def ends_soon(pid: int) -> bool:
    end = time.monotonic() + 5  # the kernel may take a moment over a process that has ended
    while not is_gone(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def watchers(data_dir: Path) -> list[int]:
    """Return the processes that wait for the last user's end."""
    found: list[int] = []
    for process_dir in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (process_dir / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(data_dir / "users.lock") in arguments:
                found.append(int(process_dir.name))
    return found


class Child:
    """A Python process that runs code and then what it is told, line by line."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path[1:]])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


# Starts, says whether it owns the server, then obeys: start, stop, or the end of input.
SERVE = """
import sys
from registry.local_postgres import LocalPostgres
shared = sys.argv[2:] == ["shared"]
pg = LocalPostgres(sys.argv[1], settings={"fsync": "off"}).start(shared=shared)
print(pg.owned, flush=True)
for line in sys.stdin:
    getattr(pg, line.strip())()
    print(pg.owned, flush=True)
"""


HOME_OF_ACCOUNT = Path(pwd.getpwuid(os.getuid()).pw_dir)


@pytest.mark.parametrize(
    ("home", "expected"), [("/home/ada", Path("/home/ada")), ("", HOME_OF_ACCOUNT)]
)
def test_an_empty_home_is_that_of_the_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str, expected: Path
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    assert default_data_dir(environ={"HOME": home}).is_relative_to(expected)
    assert LocalPostgres("~/of mine").data_dir == (expected / "of mine").resolve()
    monkeypatch.setenv("XDG_DATA_HOME", "")
    for empty in (None, ""):
        assert LocalPostgres(empty).data_dir == default_data_dir().resolve()
    assert list(tmp_path.iterdir()) == []


def test_no_home_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_account(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(accounts.pwd, "getpwuid", no_account)
    monkeypatch.setenv("HOME", "")
    for make in (lambda: default_data_dir(environ={}), lambda: LocalPostgres("~/x")):
        with pytest.raises(LocalPostgresError, match=r"no home folder.*--data-dir, or set HOME"):
            make()
    with pytest.raises(LocalPostgresError, match="~no-such-user in ~no-such-user/x is no home"):
        LocalPostgres("~no-such-user/x")


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, "/home/ada/.local/share/toolrag/postgres"),
        ("linux", {"XDG_DATA_HOME": "/srv/data"}, "/srv/data/toolrag/postgres"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "/home/ada/.local/share/toolrag/postgres"),
        ("darwin", {}, "/home/ada/Library/Application Support/toolrag/postgres"),
        ("win32", {}, "/home/ada/AppData/Local/toolrag/postgres"),
        ("win32", {"LOCALAPPDATA": "/profiles/ada"}, "/profiles/ada/toolrag/postgres"),
    ],
)
def test_default_data_dir_follows_the_platform(
    platform: str, environ: dict[str, str], expected: str
) -> None:
    found = default_data_dir(environ=environ, home=Path("/home/ada"), platform=platform)
    assert found == Path(expected)


def test_serves_a_database_with_pgvector_and_keeps_it(new_dir: Path) -> None:
    with LocalPostgres(new_dir, database="käse 100%", settings={"work_mem": "7MB", **FAST}) as pg:
        engine = sqlalchemy.create_engine(pg.url)
        with engine.begin() as connected:
            assert connected.scalar(sqlalchemy.text("SELECT current_database()")) == "käse 100%"
            connected.execute(sqlalchemy.text("CREATE EXTENSION vector"))
            connected.execute(sqlalchemy.text("CREATE EXTENSION pg_trgm"))
            connected.execute(sqlalchemy.text("CREATE TABLE kept AS SELECT '[1,2]'::vector AS v"))
            trigrams = connected.scalar(sqlalchemy.text("SELECT show_trgm('日本語')"))
            assert trigrams, "trigrams of text that is not ASCII"
        engine.dispose()
        assert ask(pg.url, "SHOW work_mem") == "7MB"
        assert ask(pg.url, "SHOW listen_addresses") == ""
        assert ask(pg.url, "SHOW TimeZone") == "UTC"
        status = pg.status()
        assert status.running
        assert status.owned
        assert status.owner_pid == os.getpid()
        assert (status.version or "").startswith("18.")
        assert status.url == pg.url
    assert is_gone(status.pid or 0)
    with LocalPostgres(new_dir, database="käse 100%", settings=FAST) as pg:
        assert ask(pg.url, "SELECT v::text FROM kept") == "[1,2]"


def test_status_and_url_before_start_make_nothing(new_dir: Path) -> None:
    pg = LocalPostgres(new_dir)
    status = pg.status()
    assert not status.running
    assert (status.owned, status.pid, status.version, status.url) == (False, None, None, None)
    with pytest.raises(LocalPostgresError, match=r"Call start\(\) first"):
        _ = pg.url
    assert stop_server(new_dir).pid is None
    assert not new_dir.exists()


def test_nobody_else_can_enter_the_socket_folder(data_dir: Path) -> None:
    with LocalPostgres(data_dir, settings=FAST) as pg:
        socket_dir = Path(str(sqlalchemy.make_url(pg.url).query["host"]))
        assert (socket_dir / ".s.PGSQL.5432").is_socket()
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
        assert socket_dir.stat().st_uid == Path(f"/proc/{server_pid(data_dir)}").stat().st_uid


def test_the_server_is_not_told_the_callers_secrets(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with LocalPostgres(data_dir, settings=FAST):
        environ = Path(f"/proc/{server_pid(data_dir)}/environ").read_bytes()
    assert b"sk-secret" not in environ


@as_root
def test_root_runs_it_as_an_unprivileged_user_and_loosens_no_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    data_dir = closed / "below" / "pg"
    parents = [closed, *closed.parents]
    before = [stat.S_IMODE(parent.stat().st_mode) for parent in parents]
    with LocalPostgres(data_dir, settings=FAST) as pg:
        assert ask(pg.url, "SELECT 1") == 1
        assert Path(f"/proc/{server_pid(data_dir)}").stat().st_uid != 0
        groups = Path(f"/proc/{server_pid(data_dir)}/status").read_text()
        assert "\nGroups:\t \n" in groups, "no group of root's is kept"
    assert [stat.S_IMODE(parent.stat().st_mode) for parent in parents] == before


@as_root
def test_root_keeps_the_user_that_an_existing_cluster_belongs_to(
    new_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_ACCOUNTS", ("nobody",))
    LocalPostgres(new_dir, settings=FAST).start().stop()
    monkeypatch.setattr(accounts, "_ACCOUNTS", ("daemon",))
    with LocalPostgres(new_dir, settings=FAST):
        uid = Path(f"/proc/{server_pid(new_dir)}").stat().st_uid
    assert uid == pwd.getpwnam("nobody").pw_uid


@as_root
def test_root_is_told_when_no_account_can_run_it(
    new_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_ACCOUNTS", ("no-such-account",))
    with pytest.raises(LocalPostgresError, match="useradd --system toolrag"):
        LocalPostgres(new_dir).start()


@as_root
def test_a_plain_user_runs_it_as_itself(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = open_dir / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    # The interpreter, the packages and the project may lie where only root may go: everything is
    # loaded, and the programs copied, before root is given up.
    code = """
import os, pwd, shutil, sys, psycopg
from pathlib import Path
from registry import local_postgres
home = Path(sys.argv[1])
launcher = shutil.copy(local_postgres.ServerProcess.__init__.__globals__["_LAUNCHER"], home)
local_postgres.ServerProcess.__init__.__globals__["_LAUNCHER"] = launcher
nobody = local_postgres.server_user(home)
programs = local_postgres.binaries_for(
    local_postgres.find_binaries(), nobody, cache_dir=home.parent / "cache")
local_postgres.find_binaries = lambda: programs
os.chmod(launcher, 0o644)
os.setgroups([]); os.setgid(nobody.gid); os.setuid(nobody.uid)
os.environ["HOME"] = str(home); os.environ.pop("XDG_DATA_HOME", None); os.chdir("/")
with local_postgres.LocalPostgres(settings={"fsync": "off"}) as pg:
    with psycopg.connect(pg.url.replace("+psycopg", "")) as c:
        assert c.execute("SELECT 1").fetchone() == (1,)
    server = pg.status().pid
    print(pg.data_dir, os.stat(f"/proc/{server}").st_uid, pg.owned, flush=True)
"""
    with Child(code, home) as child:
        expected = home / ".local" / "share" / "toolrag" / "postgres"
        assert child.read() == f"{expected} {nobody.pw_uid} True"
        assert child.process.wait(30) == 0


def test_a_user_without_a_name_is_told_so(new_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = 54_321
    monkeypatch.setattr(os, "geteuid", lambda: nameless)
    with pytest.raises(LocalPostgresError, match=r"uid 54321, which has no account here") as told:
        LocalPostgres(new_dir).start()
    assert "--database-url" in str(told.value)
    assert "room" not in str(told.value)
    monkeypatch.undo()
    assert sorted(path.name for path in new_dir.iterdir()) == ["server.lock", "users.lock"]


@as_root
def test_binaries_in_a_closed_folder_are_copied_once(
    data_dir: Path, tmp_path: Path, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = binaries.find_binaries().parent.parent
    closed = tmp_path / "root-only" / "site-packages"
    shutil.copytree(package, closed / package.name)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, closed / libraries.name)
    (tmp_path / "root-only").chmod(0o700)
    cache = open_dir / "cache"
    monkeypatch.setattr(
        local_postgres, "find_binaries", lambda: closed / package.name / "pginstall" / "bin"
    )
    monkeypatch.setattr(local_postgres, "system_cache_dir", lambda: cache)
    for _ in range(2):
        with LocalPostgres(data_dir, settings=FAST) as pg:
            assert ask(pg.url, "SELECT 1") == 1
            program = os.readlink(f"/proc/{server_pid(data_dir)}/exe")
            assert program.startswith(str(cache))
        (copy,) = cache.iterdir()
    assert stat.S_IMODE((tmp_path / "root-only").stat().st_mode) == 0o700

    # psql finds its libraries beside the package: the copy is laid out alike.
    nobody = accounts.ServerUser("nobody", *pwd.getpwnam("nobody")[2:4])
    psql = copy / package.name / "pginstall" / "bin" / "psql"
    done = accounts.run_as([psql, "--version"], nobody, cwd=Path("/"), timeout_s=30)
    assert done.returncode == 0, done.stderr

    cache.chmod(0o777)
    with pytest.raises(LocalPostgresError, match="may be written by users other than root"):
        LocalPostgres(data_dir, settings=FAST).start()


def test_many_processes_at_once_share_one_server(new_dir: Path) -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(SERVE, new_dir)) for _ in range(4)]
        assert sorted(child.read() for child in children) == ["False", "False", "False", "True"]
        with LocalPostgres(new_dir) as attached:
            assert not attached.owned
            assert ask(attached.url, "SELECT 1") == 1
        assert LocalPostgres(new_dir).status().running, "leaving does not stop it"


def test_an_attached_process_takes_over_when_the_owner_stops(data_dir: Path) -> None:
    with Child(SERVE, data_dir) as owner, LocalPostgres(data_dir, settings=FAST) as attached:
        # Whichever was first owns it; make it the child.
        if owner.read() == "False":
            attached.stop()
            owner.tell("start")
            assert owner.read() == "True"
            attached.start()
        assert not attached.owned
        owner.tell("stop")
        assert owner.read() == "False"
        assert not attached.status().running
        attached.start()
        assert attached.owned
        assert ask(attached.url, "SELECT 1") == 1


def test_threads_that_start_one_object_start_one_server(new_dir: Path) -> None:
    pg = LocalPostgres(new_dir, settings=FAST)
    with ThreadPoolExecutor(8) as pool:
        urls = {started.url for started in pool.map(lambda _: pg.start(), range(8))}
    try:
        assert len(urls) == 1
        assert pg.owned
    finally:
        pg.stop()


def test_a_database_made_by_many_at_once_is_made_once(data_dir: Path) -> None:
    with LocalPostgres(data_dir, settings=FAST) as pg:
        socket_dir = Path(str(sqlalchemy.make_url(pg.url).query["host"]))
        barrier = threading.Barrier(8)

        def make(_: int) -> None:
            barrier.wait()
            connection.ensure_database(socket_dir, "raced")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, range(8)))
        assert ask(pg.url, "SELECT count(*) FROM pg_database WHERE datname = 'raced'") == 1


def test_the_server_ends_with_an_owner_that_is_killed(data_dir: Path) -> None:
    with Child(SERVE, data_dir) as owner:
        assert owner.read() == "True"
        url = LocalPostgres(data_dir).status().url or ""
        with connect(url) as connected:
            connected.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        pid = server_pid(data_dir)
        owner.kill()
        # At once, while the old server may still be shutting down.
        with LocalPostgres(data_dir, settings=FAST) as pg:
            assert is_gone(pid)
            assert pg.owned
            assert ask(pg.url, "SELECT answer FROM kept") == 42


def test_a_server_started_in_a_thread_outlives_it_but_not_the_process(data_dir: Path) -> None:
    code = """
import sys, threading
from registry.local_postgres import LocalPostgres
pg = LocalPostgres(sys.argv[1], settings={"fsync": "off"})
thread = threading.Thread(target=pg.start)
thread.start(); thread.join()
print(pg.owned, flush=True)
sys.stdin.readline()
print(pg.owned, pg.status().running, flush=True)
sys.stdin.readline()
"""
    with Child(code, data_dir) as owner:
        assert owner.read() == "True"
        pid = server_pid(data_dir)
        # A shutdown that the thread's end had caused would be over by the time this returns.
        with connect(LocalPostgres(data_dir).status().url or "") as connected:
            connected.execute("SELECT pg_sleep(0.3)")
        owner.tell()
        assert owner.read() == "True True"
        owner.kill()
        wait_until(lambda: is_gone(pid), "the server has ended with its owner")


def test_the_server_ends_with_an_owner_that_forgot_to_stop_it(data_dir: Path) -> None:
    with Child(SERVE, data_dir) as owner:
        assert owner.read() == "True"
        pid = server_pid(data_dir)
        assert owner.process.stdin is not None
        owner.process.stdin.close()
        assert owner.process.wait(30) == 0
        assert is_gone(pid), "stopped before the interpreter ended"


def test_a_forked_child_neither_owns_nor_stops_the_server(data_dir: Path) -> None:
    code = """
import os, sys
from registry.local_postgres import LocalPostgres
pg = LocalPostgres(sys.argv[1], settings={"fsync": "off"}).start()
pid = os.fork()
if pid == 0:
    print(pg.owned, flush=True)
    pg.stop()
    sys.exit()
os.waitpid(pid, 0)
print(pg.owned, pg.status().running, flush=True)
"""
    with Child(code, data_dir) as owner:
        assert owner.read() == "False"
        assert owner.read() == "True True"
        assert owner.process.wait(30) == 0


def test_a_killed_server_recovers_at_the_next_start(data_dir: Path) -> None:
    with LocalPostgres(data_dir, settings=FAST) as pg:
        with connect(pg.url) as connected:
            connected.execute("CREATE TABLE kept AS SELECT 42 AS answer")
            os.kill(server_pid(data_dir), signal.SIGKILL)
            wait_until(lambda: not pg.owned, "the owner has seen it")
            # Its other processes are still about: one of them serves `connected`.
            pg.start()
        assert pg.owned
        assert ask(pg.url, "SELECT answer FROM kept") == 42


def test_an_attached_process_revives_a_server_whose_owner_lives(data_dir: Path) -> None:
    with Child(SERVE, data_dir) as owner:
        assert owner.read() == "True"
        os.kill(server_pid(data_dir), signal.SIGKILL)
        with LocalPostgres(data_dir, settings=FAST) as pg:
            assert pg.owned
            assert ask(pg.url, "SELECT 1") == 1


@pytest.mark.parametrize("kind", ["dead", "reused", "our own", "garbage", "empty"])
def test_a_stale_pid_file_is_seen_through(data_dir: Path, kind: str) -> None:
    pg = LocalPostgres(data_dir, settings=FAST).start()
    cluster = data_dir / "cluster"
    pid_file = cluster / "postmaster.pid"
    content = pid_file.read_text()
    pid = str(server_pid(data_dir))
    lock_content = (cluster / ".s.PGSQL.5432.lock").read_text()
    owner = cluster.stat()
    pg.stop()
    assert not pid_file.exists()
    # A process of the server's own user: one PostgreSQL takes for a running server.
    users = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if IS_ROOT else {}
    with subprocess.Popen(["/bin/sleep", "600"], **users) as stranger:  # type: ignore[call-overload]
        try:
            new_pid = {"reused": str(stranger.pid), "our own": str(os.getpid())}.get(kind, pid)
            for path, text in (
                (pid_file, content),
                (cluster / ".s.PGSQL.5432.lock", lock_content),
            ):
                stale = {"garbage": "no pid\n", "empty": ""}.get(
                    kind, text.replace(pid, new_pid, 1)
                )
                path.write_text(stale)
                path.chmod(0o600)
                os.chown(path, owner.st_uid, owner.st_gid)
            assert not pg.status().running
            assert stop_server(data_dir).pid is None
            with pg:
                assert pg.owned
                assert ask(pg.url, "SELECT 1") == 1
            assert stranger.poll() is None, "a stranger is left alone"
        finally:
            stranger.kill()


@pytest.mark.parametrize(
    "name",
    ["with spaces in it", "x" * 100, "100%, café & 日本語?#'\"", "long and wide " * 12],
    ids=["spaces", "long", "special", "long with spaces"],
)
def test_odd_folders(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / name
    with LocalPostgres(data_dir, settings=FAST) as pg:
        socket_dir = Path(str(sqlalchemy.make_url(pg.url).query["host"]))
        try:
            assert "%" not in pg.url, "an ini file would take it for an interpolation"
            assert ask(pg.url, "SELECT 1") == 1
            assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
            with Child(SERVE, data_dir) as other:
                assert other.read() == "False"
        finally:
            pg.stop()
        assert not socket_dir.exists() or socket_dir.is_relative_to(data_dir)


def test_a_socket_folder_made_by_somebody_else_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / ("x" * 100)
    with LocalPostgres(data_dir, settings=FAST) as pg:
        socket_dir = Path(str(sqlalchemy.make_url(pg.url).query["host"]))
    assert socket_dir.parent != data_dir
    real = socket_dir.with_name(f"{socket_dir.name}-elsewhere")

    def open_to_all() -> None:
        socket_dir.mkdir()
        socket_dir.chmod(0o777)

    def link() -> None:
        real.mkdir(mode=0o700)
        socket_dir.symlink_to(real)

    def of_another_user() -> None:
        socket_dir.mkdir(mode=0o700)
        if IS_ROOT:
            os.chown(socket_dir, 12345, 12345)
        else:
            socket_dir.chmod(0o750)

    try:
        for squat in (open_to_all, of_another_user, link):
            if socket_dir.exists():
                socket_dir.rmdir()
            squat()
            with pytest.raises(LocalPostgresError, match="not a private folder"):
                pg.start()
            assert not pg.status().running
    finally:
        socket_dir.unlink()
        real.rmdir()


def test_a_full_disk_at_initdb_leaves_nothing_half_made(tmp_path: Path) -> None:
    data_dir = tmp_path / "pg"
    code = """
import resource, sys
from registry.errors import LocalPostgresError
from registry.local_postgres import LocalPostgres
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    LocalPostgres(sys.argv[1]).start()
except LocalPostgresError as error:
    print(error, flush=True)
"""
    with Child(code, data_dir) as child:
        message = child.read()
        assert child.process.wait(30) == 0
    assert "could not be made" in message
    assert "--data-dir" in message
    assert sorted(path.name for path in data_dir.iterdir()) == ["server.lock", "users.lock"]
    with LocalPostgres(data_dir, settings=FAST) as pg:
        assert ask(pg.url, "SELECT 1") == 1


@as_root
def test_a_full_file_system_is_named_as_the_reason(open_dir: Path) -> None:
    disk = open_dir / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this root may not mount; the other test of a full disk does without")
    try:
        with pytest.raises(LocalPostgresError, match="No space left on device") as caught:
            LocalPostgres(disk / "pg").start()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1_000
        left = sorted(path.name for path in (disk / "pg").iterdir())
        assert left == ["server.lock", "users.lock"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_a_killed_initdb_left_is_cleared_away(new_dir: Path) -> None:
    left = new_dir / "cluster.new" / "base"
    left.mkdir(parents=True)
    (left / "1").write_text("half")
    with LocalPostgres(new_dir, settings=FAST) as pg:
        assert ask(pg.url, "SELECT 1") == 1
    assert not left.parent.exists()


def test_data_of_another_major_version_is_refused(data_dir: Path) -> None:
    (data_dir / "cluster" / "PG_VERSION").write_text("17\n")
    with pytest.raises(LocalPostgresError, match=r"by PostgreSQL 17.*brings PostgreSQL 18"):
        LocalPostgres(data_dir, settings=FAST).start()


def test_foreign_files_are_not_touched(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "PG_VERSION").write_text("16\n")
    with pytest.raises(LocalPostgresError, match="data folder of another PostgreSQL"):
        LocalPostgres(other).start()
    mine = tmp_path / "mine" / "cluster" / "letter.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("dear")
    if IS_ROOT:
        os.chown(mine.parent, 65534, 65534)
    with pytest.raises(LocalPostgresError, match="holds files, but no PostgreSQL data"):
        LocalPostgres(tmp_path / "mine").start()
    assert mine.read_text() == "dear"


@as_root
def test_files_of_roots_own_are_refused_with_the_remedy(new_dir: Path) -> None:
    (new_dir / "cluster").mkdir(parents=True)
    with pytest.raises(LocalPostgresError, match=r"belongs to root.*chown"):
        LocalPostgres(new_dir).start()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/toolrag")):
        with pytest.raises(LocalPostgresError, match="--data-dir") as caught:
            LocalPostgres(folder).start()
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None


def test_a_setting_that_postgres_refuses_is_named(data_dir: Path) -> None:
    with pytest.raises(LocalPostgresError, match="no_such_setting") as caught:
        LocalPostgres(data_dir, settings={"no_such_setting": "1"}).start()
    assert "\n" not in str(caught.value)
    assert not LocalPostgres(data_dir).status().running
    LocalPostgres(data_dir, settings=FAST).start().stop()


@pytest.mark.parametrize("name", ["port", "unix_socket_directories", "toolrag.owner_pid"])
def test_settings_of_our_own_cannot_be_overridden(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalPostgresError, match=name):
        LocalPostgres(tmp_path, settings={name: "1"})


@pytest.mark.parametrize("name", ["", "x" * 64, "ä" * 32, "a\0b"])
def test_names_that_postgres_would_cut_or_refuse(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalPostgresError, match="1 to 63 bytes"):
        LocalPostgres(tmp_path, database=name)


def test_without_the_extra_it_says_what_to_install(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LocalPostgresError, match=r"pip install 'toolrag\[local\]'"):
        LocalPostgres(data_dir).start()


async def test_starts_under_a_running_event_loop(data_dir: Path) -> None:
    with LocalPostgres(data_dir, settings=FAST) as pg:
        engine = sqlalchemy.ext.asyncio.create_async_engine(pg.url)
        async with engine.connect() as connected:
            assert await connected.scalar(sqlalchemy.text("SELECT 1")) == 1
        await engine.dispose()


def test_a_detached_server_stays_until_it_is_stopped(data_dir: Path) -> None:
    code = """
import sys
from registry.local_postgres import LocalPostgres
pg = LocalPostgres(sys.argv[1], settings={"fsync": "off"}).start(detached=True)
print(pg.owned, pg.status().owner_pid, flush=True)
pg.stop()
"""
    with Child(code, data_dir) as starter:
        assert starter.read() == "False None"
        assert starter.process.wait(30) == 0
    with LocalPostgres(data_dir) as attached:
        assert not attached.owned
        assert ask(attached.url, "SELECT 1") == 1
    before = stop_server(data_dir)
    assert before.running
    assert before.owner_pid is None
    wait_until(lambda: is_gone(before.pid or 0), "it has ended")
    assert not LocalPostgres(data_dir).status().running


def test_a_shared_server_ends_with_its_last_user(data_dir: Path) -> None:
    with Child(SERVE, data_dir, "shared") as first, Child(SERVE, data_dir, "shared") as second:
        assert (first.read(), second.read()) == ("False", "False")
        status = LocalPostgres(data_dir).status()
        assert (status.running, status.shared, status.owner_pid) == (True, True, None)
        first.tell("stop")
        first.read()
        # Whoever uses it counts, also a program that would own a server it had started.
        with LocalPostgres(data_dir) as attached:
            second.tell("stop")
            second.read()
            assert ask(attached.url, "SELECT 1") == 1
            assert server_pid(data_dir) == status.pid
        assert LocalPostgres(data_dir).status().pid is None, "before the last user goes on"
        assert ends_soon(status.pid or 0)
        # An owned one, although the shared one left its mark.
        with LocalPostgres(data_dir, settings=FAST) as owner:
            with LocalPostgres(data_dir).start(shared=True):
                pass
            assert owner.owned
            assert ask(owner.url, "SELECT 1") == 1


def test_users_of_a_shared_server_that_leave_at_once_leave_none(data_dir: Path) -> None:
    for _ in range(5):
        users = [LocalPostgres(data_dir, settings=FAST) for _ in range(12)]
        with ThreadPoolExecutor(len(users)) as pool:
            list(pool.map(lambda user: user.start(shared=True), users))
            pid = server_pid(data_dir)
            list(pool.map(lambda user: user.stop(), users))
        assert LocalPostgres(data_dir).status().pid is None
        assert ends_soon(pid)


def test_who_comes_while_the_last_user_leaves_gets_a_server(data_dir: Path) -> None:
    def come_and_go(_: int) -> object:
        user = LocalPostgres(data_dir, settings=FAST).start(shared=True)
        try:
            return ask(user.url, "SELECT 1")
        finally:
            user.stop()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(come_and_go, range(24))) == {1}
    assert LocalPostgres(data_dir).status().pid is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next user ends it")
def test_a_shared_server_ends_when_all_its_users_are_killed(data_dir: Path) -> None:
    with Child(SERVE, data_dir, "shared") as starter, Child(SERVE, data_dir, "shared") as other:
        assert (starter.read(), other.read()) == ("False", "False")
        pid = server_pid(data_dir)
        assert len(watchers(data_dir)) == 1
        starter.kill()
        # An end that the starter's death had caused would be over by the time this returns.
        with connect(LocalPostgres(data_dir).status().url or "") as connected:
            connected.execute("SELECT pg_sleep(0.3)")
        other.kill()
        # At once, while the old server may still be shutting down.
        with LocalPostgres(data_dir, settings=FAST).start(shared=True) as pg:
            assert ask(pg.url, "SELECT 1") == 1
        wait_until(lambda: is_gone(pid), "the server has ended")
    assert LocalPostgres(data_dir).status().pid is None
    wait_until(lambda: watchers(data_dir) == [], "nobody watches any more")


def test_a_shared_server_that_is_asked_to_stay_stays(data_dir: Path) -> None:
    with Child(SERVE, data_dir, "shared") as user:
        assert user.read() == "False"
        LocalPostgres(data_dir).start(detached=True).stop()
        status = LocalPostgres(data_dir).status()
        assert (status.running, status.shared) == (True, False)
        user.tell("stop")
        user.read()
        assert server_pid(data_dir) == status.pid
        user.tell("start")
        user.read()
        user.kill()
    with LocalPostgres(data_dir).start(shared=True) as pg:
        assert ask(pg.url, "SELECT 1") == 1
    assert server_pid(data_dir) == status.pid


def test_a_start_that_fails_leaves_no_user(data_dir: Path) -> None:
    refused = LocalPostgres(data_dir, settings={"no_such_setting": "1"})
    with pytest.raises(LocalPostgresError, match="no_such_setting"):
        refused.start(shared=True)
    with process.exclusive_lock(data_dir / "users.lock", timeout_s=5):
        pass


def test_a_start_waits_for_the_end_of_a_server_without_users(new_dir: Path) -> None:
    new_dir.mkdir()
    with (
        process.exclusive_lock(new_dir / "users.lock", timeout_s=1),
        pytest.raises(LocalPostgresError, match=r"ending for more than 0\.1 s"),
    ):
        LocalPostgres(new_dir, start_timeout_s=0.1).start(shared=True)


def test_a_forked_child_neither_uses_nor_leaves_a_shared_server(data_dir: Path) -> None:
    code = """
import os, sys
from registry.local_postgres import LocalPostgres
pg = LocalPostgres(sys.argv[1], settings={"fsync": "off"}).start(shared=True)
pid = os.fork()
if pid == 0:
    pg.stop()
    sys.exit()
os.waitpid(pid, 0)
with LocalPostgres(sys.argv[1]).start(shared=True):
    pass
print(pg.status().running, flush=True)
"""
    with Child(code, data_dir) as user:
        assert user.read() == "True"
        assert user.process.wait(30) == 0
    assert LocalPostgres(data_dir).status().pid is None


def test_a_server_is_taken_from_its_live_owner_when_asked_for(data_dir: Path) -> None:
    with Child(SERVE, data_dir) as owner:
        assert owner.read() == "True"
        before = stop_server(data_dir)
        assert before.owner_pid == owner.process.pid
        assert not LocalPostgres(data_dir).status().running
        owner.tell("start")
        assert owner.read() == "True"


def test_a_server_that_ignores_the_orderly_stop_is_ended(data_dir: Path) -> None:
    with LocalPostgres(data_dir, settings=FAST) as pg, connect(pg.url):
        os.kill(server_pid(data_dir), signal.SIGSTOP)
        # SIGINT waits in a stopped process; only SIGKILL ends it, which a stop of others never is.
        with pytest.raises(LocalPostgresError, match="did not end"):
            stop_server(data_dir, timeout_s=0.1)
        os.kill(server_pid(data_dir), signal.SIGCONT)
        wait_until(lambda: not pg.owned, "it has acted on what it was sent")


def test_a_start_that_another_process_holds_up_ends_in_time(new_dir: Path) -> None:
    new_dir.mkdir()
    with (
        process.exclusive_lock(new_dir / "server.lock", timeout_s=1),
        pytest.raises(LocalPostgresError, match=r"more than 0\.1 s"),
    ):
        LocalPostgres(new_dir, start_timeout_s=0.1).start()


def test_a_server_that_is_not_ready_in_time_is_stopped_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_postgres, "connection_problem", lambda _: "not yet")
    with pytest.raises(LocalPostgresError, match=r"not ready in 0\.3 s"):
        LocalPostgres(data_dir, settings=FAST, start_timeout_s=0.3).start()
    assert not LocalPostgres(data_dir).status().running


def test_a_log_that_grew_long_is_put_aside(data_dir: Path) -> None:
    log = data_dir / "server.log"
    log.write_bytes(b"x" * 1_000_001)
    LocalPostgres(data_dir, settings=FAST).start().stop()
    assert log.stat().st_size < 100_000
    assert log.with_name("server.log.old").stat().st_size == 1_000_001


def test_the_reason_of_a_failure_is_one_bounded_line() -> None:
    text = "LOG:  starting\n" + "FATAL:  no such thing\nHINT:  make one\n" * 100
    assert logs.reason_from_log(text).endswith("FATAL:  no such thing; HINT:  make one")
    assert "starting" not in logs.reason_from_log(text)
    assert len(logs.reason_from_log("x" * 10_000)) <= 401
    assert logs.reason_from_log("only this\n") == "only this"
