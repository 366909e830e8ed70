"""Every error this project raises on purpose.

    ToolRAGError
    ├── ConfigurationError              settings, URLs, embedding model names
    │   └── InvalidToolError            a tool that cannot be registered as it is
    ├── LocalPostgresError              the embedded server could not be started or reached
    ├── RegistryError
    │   ├── CategoryNotFoundError       a category without keywords
    │   ├── DuplicateToolError          one model-facing name, two tools
    │   ├── EmbeddingError              an embedding model's answer is unusable
    │   │   └── EmbeddingUnavailableError   it did not answer
    │   ├── EmbeddingModelMismatchError stored vectors are of another embedding model
    │   ├── IncompleteEmbeddingsError   a set of vectors lacks some tools, so it cannot serve
    │   ├── InvalidQueryError           an empty question, k or threshold out of range
    │   ├── RegistryBusyError           another process is doing this right now
    │   ├── RegistryUnavailableError    the database does not answer
    │   ├── SchemaVersionError          the database schema is absent, older or newer
    │   ├── ToolNotFoundError
    │   ├── VersionConflictError        a tool was changed by somebody else meanwhile
    │   └── VersionNotFoundError
    └── AgentError
        ├── ApprovalError               a decision on a call that waits for none
        ├── HistoryBudgetError          a budget, or a message, that leaves no room
        ├── RunLimitError
        ├── ThreadBusyError             another run of the thread is under way
        └── ThreadNotFoundError         no such thread is kept

Messages say what to do next; data is in attributes; the cause is chained with `from`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AgentError",
    "ApprovalError",
    "CategoryNotFoundError",
    "ConfigurationError",
    "DuplicateToolError",
    "EmbeddingError",
    "EmbeddingModelMismatchError",
    "EmbeddingUnavailableError",
    "HistoryBudgetError",
    "IncompleteEmbeddingsError",
    "InvalidQueryError",
    "InvalidToolError",
    "LocalPostgresError",
    "RegistryBusyError",
    "RegistryError",
    "RegistryUnavailableError",
    "RunLimitError",
    "SchemaVersionError",
    "ThreadBusyError",
    "ThreadNotFoundError",
    "ToolNotFoundError",
    "ToolRAGError",
    "VersionConflictError",
    "VersionNotFoundError",
]


class ToolRAGError(Exception):
    """Base class: catch this to catch every deliberate error of the project."""


class ConfigurationError(ToolRAGError):
    """A setting is missing, unreadable or out of range."""


class InvalidToolError(ConfigurationError):
    """A tool cannot be registered as it is (no name, no description, unusable schema)."""

    def __init__(self, tool_name: str, reason: str) -> None:
        super().__init__(f"Tool {tool_name!r} cannot be registered: {reason}")
        self.tool_name = tool_name
        self.reason = reason


class LocalPostgresError(ToolRAGError):
    """The embedded PostgreSQL server could not be made, started or stopped."""


class RegistryError(ToolRAGError):
    """Base class for errors of the tool registry."""


class CategoryNotFoundError(RegistryError):
    """No category of that name has keywords in this namespace."""

    def __init__(self, name: str, *, namespace: str, known: Sequence[str]) -> None:
        have = f"Those that have: {', '.join(known)}." if known else "No category has any yet."
        super().__init__(f"Category {name!r} has no keywords in namespace {namespace!r}. {have}")
        self.name = name
        self.namespace = namespace
        self.known = tuple(known)


class DuplicateToolError(RegistryError):
    """Two tools claim one model-facing name."""

    def __init__(self, tool_name: str, origins: Sequence[str]) -> None:
        super().__init__(
            f"Two tools are named {tool_name!r} (origins: {', '.join(origins)}). "
            "Rename one of them, or give each its own origin so that it gets a prefix."
        )
        self.tool_name = tool_name
        self.origins = tuple(origins)


class EmbeddingError(RegistryError):
    """The embedding model failed, or answered with vectors that cannot be used."""


class EmbeddingUnavailableError(EmbeddingError):
    """The embedding model did not answer, or gave a question no vector: words still find tools."""


class EmbeddingModelMismatchError(RegistryError):
    """The registry's vectors were made by another embedding model than the configured one."""

    def __init__(self, *, stored: str, configured: str, pruned: bool = False) -> None:
        if pruned:
            super().__init__(
                f"The vectors of {configured} that this process searches were pruned; restart "
                f"this process. The registry holds vectors of {stored}."
            )
        else:
            super().__init__(
                f"The registry holds vectors of {stored}, but {configured} is configured. "
                "Vectors of two models are never compared. Configure the stored model again, or "
                "run `toolrag embeddings migrate --to MODEL` to embed every tool with the new one."
            )
        self.stored = stored
        self.configured = configured


class IncompleteEmbeddingsError(RegistryError):
    """A set of vectors lacks tools, or has them with an older text; searches were not switched."""

    def __init__(self, model: str, model_name: str, *, tool_names: Sequence[str]) -> None:
        count = len(tool_names)
        lack = "1 tool has" if count == 1 else f"{count} tools have"
        more = ", …" if count > 5 else ""
        super().__init__(
            f"{lack} no vector of {model} for the present text "
            f"({', '.join(tool_names[:5])}{more}). Run `toolrag embeddings migrate --to "
            f"{model_name}`, which embeds what lacks and switches."
        )
        self.tool_names = tuple(tool_names)


class InvalidQueryError(RegistryError, ValueError):
    """A search was asked for with an empty question, or with k or threshold out of range."""


class RegistryBusyError(RegistryError):
    """Another process is doing what only one may do at a time."""


class RegistryUnavailableError(RegistryError):
    """The registry's database cannot be reached or did not answer in time."""


class SchemaVersionError(RegistryError):
    """The database schema is absent, or older or newer than this release expects."""

    def __init__(self, *, found: str | None, expected: str, advice: str) -> None:
        super().__init__(advice)
        self.found = found
        self.expected = expected


class ToolNotFoundError(RegistryError):
    """No tool of that name is registered in this namespace."""

    def __init__(
        self, tool_name: str, *, namespace: str, nearest: Sequence[str] = (), advice: str = ""
    ) -> None:
        hint = f" Nearest: {', '.join(nearest)}." if nearest else ""
        told = f" {advice}" if advice else ""
        super().__init__(f"No tool {tool_name!r} in namespace {namespace!r}.{told}{hint}")
        self.tool_name = tool_name
        self.namespace = namespace
        self.nearest = tuple(nearest)


class VersionConflictError(RegistryError):
    """A tool no longer has the version that a change was meant for; nothing was changed."""

    def __init__(self, tool_name: str, *, expected: int, found: int | None) -> None:
        now = "was removed" if found is None else f"is at version {found}"
        super().__init__(
            f"Tool {tool_name!r} {now}, not at version {expected}: somebody else changed it. "
            "Look at it again and repeat the change."
        )
        self.tool_name = tool_name
        self.expected = expected
        self.found = found


class VersionNotFoundError(RegistryError):
    """A tool has no such version in its history."""

    def __init__(self, tool_name: str, version: int, *, known: Sequence[int]) -> None:
        have = f"{known[0]} to {known[-1]}" if len(known) > 1 else ", ".join(map(str, known))
        super().__init__(f"Tool {tool_name!r} has no version {version}; it has {have or 'none'}.")
        self.tool_name = tool_name
        self.version = version
        self.known = tuple(known)


class AgentError(ToolRAGError):
    """Base class for errors of the agent."""


class ApprovalError(AgentError):
    """Nothing waits for the decision, or it was settled before."""


class HistoryBudgetError(AgentError):
    """A budget for the history is not usable, or the newest message alone is larger than it."""


class RunLimitError(AgentError):
    """A limit of a run is not usable, for example a step limit of zero."""


class ThreadBusyError(AgentError):
    """Another run of this thread is under way, here or in another process."""

    def __init__(self, message: str, *, thread_id: str) -> None:
        super().__init__(message)
        self.thread_id = thread_id


class ThreadNotFoundError(AgentError):
    """Nothing was ever asked in this thread."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"There is no thread {thread_id!r}; begin it with a question.")
        self.thread_id = thread_id
