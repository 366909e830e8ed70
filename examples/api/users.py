"""Who asks, and what their role lets them do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

__all__ = ["CurrentUser", "Operator", "User", "hash_of", "read_users"]


class User(BaseModel, frozen=True):
    """A person with a token.

    Attributes:
        name: Threads belong to it.
        role: A `customer` asks; an `operator` may also decide on calls that need approval, of
            any thread.
    """

    # Without a slash, so that no name of a thread reads as another user's.
    name: str = Field(pattern=r"^[a-z0-9-]{1,40}$")
    role: Literal["customer", "operator"]


def hash_of(token: str) -> str:
    """Return what is kept of a token; tokens are long and random, so a plain hash will do."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_users(path: Path) -> dict[str, User]:
    """Return users by the hash of their token, from a JSON file `{hash: {"name":, "role":}}`."""
    entries: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return {token_hash: User.model_validate(entry) for token_hash, entry in entries.items()}


_bearer = HTTPBearer(auto_error=False, description="The user's token.")


def current_user(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> User:
    """Return the user whose token was sent.

    Raises:
        HTTPException: 401, none was sent, or it is nobody's.
    """
    users: Mapping[str, User] = request.app.state.users
    user = None if given is None else users.get(hash_of(given.credentials))
    if user is None:
        raise HTTPException(401, "Send a valid token", headers={"WWW-Authenticate": "Bearer"})
    return user


CurrentUser = Annotated[User, Depends(current_user)]


def operator(user: CurrentUser) -> User:
    """Return the user, who is an operator.

    Raises:
        HTTPException: 403, it is not.
    """
    if user.role != "operator":
        raise HTTPException(403, "Only an operator decides on calls that need approval")
    return user


Operator = Annotated[User, Depends(operator)]
