"""Statements about the relevance scale of a namespace and an embedding model."""

from __future__ import annotations

from sqlalchemy import Insert, func, select
from sqlalchemy.dialects.postgresql import insert

from registry.relevance import Calibration
from registry.statements._rows import Rows
from registry.tables import tool_calibration, tool_corpus, tool_learning

__all__ = ["calibration_state", "store_calibration"]


def calibration_state(namespace: str, model_id: int) -> Rows:
    """(tools, calibrated, moved): tools counted by the last larger sync, and when calibrated.

    `calibrated` is null where the namespace and model were never calibrated; `moved` says that
    learning moved vectors since. No row means that nothing was counted yet.
    """
    moved = (
        select(tool_learning.c.version)
        .where(
            tool_learning.c.namespace == namespace,
            tool_learning.c.embedding_model_id == model_id,
            tool_learning.c.learned_at > tool_calibration.c.calibrated_at,
        )
        .correlate(tool_calibration)
        .exists()
    )
    return (
        select(
            tool_corpus.c.tools, tool_calibration.c.tools.label("calibrated"), moved.label("moved")
        )
        .select_from(tool_corpus)
        .outerjoin(
            tool_calibration,
            (tool_calibration.c.namespace == tool_corpus.c.namespace)
            & (tool_calibration.c.embedding_model_id == model_id),
        )
        .where(tool_corpus.c.namespace == namespace)
    )


def store_calibration(
    namespace: str, model_id: int, by: Calibration, *, tools: int, calls: int
) -> Insert:
    """Store a calibration instead of the one before; returns (version)."""
    statement = insert(tool_calibration).values(
        namespace=namespace,
        embedding_model_id=model_id,
        spread=by.spread,
        null_evidence=by.null,
        zero=by.zero,
        tools=tools,
        calls=calls,
    )
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[tool_calibration.c.namespace, tool_calibration.c.embedding_model_id],
        set_={
            **{name: new[name] for name in ("spread", "null_evidence", "zero", "tools", "calls")},
            "version": tool_calibration.c.version + 1,
            "calibrated_at": func.now(),
        },
    ).returning(tool_calibration.c.version)
