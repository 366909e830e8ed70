"""Exit codes, and which error has which."""

from __future__ import annotations

import registry.errors as errors

__all__ = [
    "DATABASE",
    "EPILOG",
    "FAILURE",
    "INTERNAL",
    "INTERRUPTED",
    "MODEL",
    "OK",
    "TERMINATED",
    "USAGE",
    "CliError",
    "exit_code_of",
]

OK = 0
FAILURE = 1
USAGE = 2
DATABASE = 3
MODEL = 4
INTERNAL = 70
INTERRUPTED = 130
TERMINATED = 143

EPILOG = (
    "Exit codes: 0 ok; 1 ran, but found a failure (a tool that failed, was not found or was "
    "changed meanwhile, a question without an answer); 2 usage or bad input; 3 database or schema; "
    "4 embedding or chat model; 70 a bug of this program; 130 "
    "interrupted; 143 terminated."
)

_CODES: dict[type[errors.ToolRAGError], int] = {
    errors.ToolRAGError: FAILURE,
    errors.ConfigurationError: USAGE,
    errors.DuplicateToolError: USAGE,
    errors.InvalidQueryError: USAGE,
    errors.HistoryBudgetError: USAGE,
    errors.RunLimitError: USAGE,
    errors.CategoryNotFoundError: FAILURE,
    errors.ToolNotFoundError: FAILURE,
    errors.VersionConflictError: FAILURE,
    errors.VersionNotFoundError: FAILURE,
    errors.RegistryBusyError: FAILURE,
    errors.IncompleteEmbeddingsError: FAILURE,
    errors.EmbeddingError: MODEL,
    errors.EmbeddingModelMismatchError: MODEL,
    errors.RegistryError: DATABASE,
    errors.LocalPostgresError: DATABASE,
}


class CliError(errors.ToolRAGError):
    """A command cannot go on; carries the exit code that the message deserves."""

    def __init__(self, message: str, *, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code_of(error: errors.ToolRAGError) -> int:
    """Return the exit code of an error: that of its nearest listed class."""
    if isinstance(error, CliError):
        return error.exit_code
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
