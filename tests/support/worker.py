"""Processes that work on a registry, to be started many times and to be killed.

    with Worker("sync", url, log, tools=300) as worker:
        worker.wait_for_progress(32)
        worker.kill()

They come from a server that has imported everything already, so that one starts in no time.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.tools import StructuredTool

from registry import RegistrySettings, ToolRegistry, Toolset
from registry.errors import ToolRAGError
from registry.types import SyncProgress
from tests.support.catalogue import many_specs
from tests.support.logged_embeddings import LoggedEmbeddings

_STARTER = multiprocessing.get_context("forkserver")
_STARTER.set_forkserver_preload([__name__])

Task = Literal["sync", "build", "search"]
_ARGUMENTS = {"title": "Handle", "type": "object", "properties": {"case": {"type": "integer"}}}


def _handle(case: int) -> int:
    return case


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker does.

    Attributes:
        task: `sync` the tools; `build` the model's vectors and switch to them; `search` as often.
        log: What was embedded, see `LoggedEmbeddings`.
        tools: Number of tools or searches.
        prefix: Put before each description.
    """

    task: Task
    url: str
    log: Path
    tools: int = 50
    prefix: str = ""
    model: str = "hash"
    dimensions: int = 32
    delay_s: float = 0.0
    settings: RegistrySettings = field(default_factory=RegistrySettings)

    @property
    def toolset(self) -> Toolset:
        """What is synced."""
        return Toolset(
            StructuredTool.from_function(
                _handle,
                name=spec.tool_name,
                description=self.prefix + spec.description,
                args_schema=_ARGUMENTS,
            )
            for spec in many_specs(self.tools)
        )

    def registry(self) -> ToolRegistry:
        """Return a registry as the worker has it."""
        embeddings = LoggedEmbeddings(
            self.log, dimensions=self.dimensions, model=self.model, delay_s=self.delay_s
        )
        return ToolRegistry(self.url, embeddings=embeddings, settings=self.settings)


class Worker:
    """A started worker process; killed at the latest when left.

    Attributes:
        progress: The highest number of tools it reported as stored.
        error: What it ended with, empty where it did not fail.
    """

    def __init__(self, job: Job) -> None:
        self._reports, theirs = _STARTER.Pipe(duplex=False)
        self.process = _STARTER.Process(target=_work, args=(job, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.progress = 0
        self.error = ""
        self._result: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self.process.close()
        self._reports.close()

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        self.process.kill()
        self.process.join()

    def wait_for_progress(self, at_least: int) -> bool:
        """Return whether so many tools were reported as stored before it ended."""
        while self.progress < at_least and self._read_on():
            pass
        return self.progress >= at_least

    def ended(self) -> bool:
        """Wait for the end; return whether it did its work."""
        while self._read_on():
            pass
        self.process.join()
        return self._result is not None

    def result(self) -> dict[str, Any]:
        """Wait for the end and return what it did.

        Raises:
            AssertionError: It failed; with its error.
        """
        assert self.ended(), self.error or f"exit code {self.process.exitcode}"
        assert self._result is not None
        return self._result

    def _read_on(self) -> bool:
        try:
            assert self._reports.poll(60), "a worker said nothing for a minute"
            kind, value = self._reports.recv()
        except (EOFError, OSError):
            return False
        if kind == "progress":
            self.progress = max(self.progress, value)
        elif kind == "error":
            self.error = value
        else:
            self._result = value
        return True


def _work(job: Job, reports: Connection) -> None:
    def tell(progress: SyncProgress) -> None:
        reports.send(("progress", progress.done))

    registry = job.registry()
    try:
        if job.task == "sync":
            report = registry.sync(job.toolset, on_progress=tell)
            done = {"embedded": report.embedded, "failed": dict(report.failed)}
        elif job.task == "build":
            built = registry.build_embeddings(on_progress=tell)
            done = {"embedded": built.embedded, "model": registry.switch_embeddings().id}
        else:
            hits = [registry.search(f"handle {n}", threshold=0) for n in range(job.tools)]
            done = {"found": sum(bool(found) for found in hits)}
        reports.send(("done", done))
    except ToolRAGError as error:
        reports.send(("error", f"{type(error).__name__}: {error}"))
    finally:
        registry.close()
