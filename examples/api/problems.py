"""What a client is told of an error, and what only those are who run the service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from registry.errors import (
    ApprovalError,
    HistoryBudgetError,
    InvalidQueryError,
    RegistryUnavailableError,
    ThreadBusyError,
    ThreadNotFoundError,
    ToolRAGError,
)

__all__ = ["problem_of", "problem_response"]

_log = logging.getLogger(__name__)

# The messages of other errors are for those who run the service, not for its users.
_STATUS: Mapping[type[ToolRAGError], int] = {
    ThreadNotFoundError: 404,
    ApprovalError: 409,
    InvalidQueryError: 422,
    HistoryBudgetError: 422,
}
_UNTOLD: Mapping[type[ToolRAGError], tuple[int, str]] = {
    ThreadBusyError: (409, "A run of this thread is under way; wait for its end"),
    RegistryUnavailableError: (503, "The database does not answer; try again later"),
}


def problem_of(error: Exception) -> dict[str, Any]:
    """Return an error as RFC 9457 has it; what is not for clients is logged instead."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return {"title": type(error).__name__, "status": status, "detail": str(error)}
    for kind, (status, detail) in _UNTOLD.items():
        if isinstance(error, kind):
            return {"title": type(error).__name__, "status": status, "detail": detail}
    _log.error("run_failed", exc_info=error)
    return {"title": "InternalError", "status": 500, "detail": "Something failed here"}


async def problem_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error that came before anything was sent."""
    problem = problem_of(error)
    return JSONResponse(problem, problem["status"], media_type="application/problem+json")
