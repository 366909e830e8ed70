"""What `toolrag version` says."""

from __future__ import annotations

import importlib.metadata
import platform

__all__ = ["describe_version"]


def describe_version() -> str:
    """Return the release, the schema revision it needs, and the Python it runs on."""
    from registry.tables import SCHEMA_REVISION

    try:
        release = importlib.metadata.version("toolrag")
    except importlib.metadata.PackageNotFoundError:
        release = "(not installed)"
    return f"toolrag {release} (schema {SCHEMA_REVISION}, Python {platform.python_version()})"
