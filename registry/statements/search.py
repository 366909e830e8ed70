"""Statements of a search: its settings, candidates by vector and by words, the exact scan."""

from __future__ import annotations

from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    CTE,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    ScalarSelect,
    Text,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    select,
    table,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import REGCLASS

from registry.statements._rows import Rows
from registry.statements.categories import categories_stamp, count_active_tools
from registry.statements.models import serving_model_id
from registry.statements.words import word_scores
from registry.tables import tool_calibration, tool_embedding, tool_registry

__all__ = ["nearest_tools_exactly", "search_candidates", "set_search_settings"]

_HIT_COLUMNS = (
    tool_registry.c.tool_name,
    tool_registry.c.display_name,
    tool_registry.c.description,
    tool_registry.c.category,
    tool_registry.c.binding,
    tool_registry.c.origin,
    tool_registry.c.requires_approval,
    tool_registry.c.read_only,
    tool_registry.c.fallback,
    tool_registry.c.version,
)
_K = bindparam("k", type_=Integer)
_NEEDED = bindparam("needed", type_=Integer)
_LIMIT = bindparam("candidates", type_=Integer)
_EF_SEARCH = cast(func.current_setting("hnsw.ef_search"), Integer)
# From so many vectors on, twice the candidate list keeps recall@10 at 0.98.
_LARGE_INDEX = 30_000
_MOST_EF_SEARCH = 1_000


def set_search_settings(model_id: int, *, ef_search: int) -> Rows:
    """Set the search's options until the end of the transaction, and for nothing after it.

    Returns what is the same for all candidates, as one row: `serving`, the set of vectors in use;
    `center`, `spread`, `null_evidence`, `zero` and `words_share` of the calibration, null where
    there is none; and what a strategy rests on, `categories_stamp` and `active_tools`. Binds
    `namespace`, and `counted`, how far active tools are counted.

    Args:
        model_id: Whose calibration.
        ef_search: Candidate list of an index scan; twice that in a large index.
    """
    vectors = (
        select(column("reltuples"))
        .select_from(table("pg_class"))
        .where(column("oid") == cast(literal(tool_embedding.name), REGCLASS))
        .scalar_subquery()
    )
    doubled = min(2 * ef_search, _MOST_EF_SEARCH)
    return select(
        func.set_config(
            "hnsw.ef_search",
            case((vectors > _LARGE_INDEX, str(doubled)), else_=str(ef_search)),
            True,
        ),
        func.set_config("hnsw.iterative_scan", "relaxed_order", True),
        # The planner takes a distance for cheap and a page in memory for dear: with its default
        # of 4 it scans 10,000 vectors although the index answers in a third of the time.
        func.set_config("random_page_cost", "1.1", True),
        # Compiling the exact scan, which most searches never begin, takes longer than a search.
        func.set_config("jit", "off", True),
        # What is planned once serves as well as a plan for each question, which takes a
        # millisecond.
        func.set_config("plan_cache_mode", "force_generic_plan", True),
        serving_model_id(),
        *(
            _calibrated(model_id, tool_calibration.c[name]).label(name)
            for name in ("center", "spread", "null_evidence", "zero", "words_share")
        ),
        categories_stamp(),
        count_active_tools(),
    )


def search_candidates(
    model_id: int,
    dimensions: int,
    *,
    parts: int,
    walked: int,
    words: bool,
    vectors: bool = True,
    explained: bool = False,
) -> Rows:
    """Return what a search ranks: the nearest tools, and those with the question's words.

    Part 0 is the question, the others are its clauses. Binds `namespace`; `vector_<p>`, a
    part's in pgvector's text form; `terms`, and `masks` whose bit p says that a term is in part p;
    `candidates`, how many of each kind; and `needed`, how many of the nearest must pass the filters
    in the index's walk. Each row has, for each part p, `distance_<p>` (exact cosine distance) and
    `words_<p>` (BM25, 0 where no term occurs). The rows are in no order: asked for one, the planner
    may walk the index a second time, and miss some. Each row also holds what relevance rests on
    beside the calibration: `possible`, what the question's words could weigh at most, and
    `traffic`, the question's inner product with what answered questions have in common.

    The model's id is written into the statement: only then can a prepared statement use the
    model's partial index. The walk is ordered by distance, ascending, with the index's own
    operator and expression, so the index serves.

    An index knows no filters, and one that goes on walking until enough tools pass them has left
    the well-explored part of its graph: among 100,000 tools recall@10 fell to 0.9 where 1 tool in
    100 passed, and to 0.3 where the nearest 10,000 were another namespace's. So only the nearer
    half of what the index sees in one go is relied on. Where enough of it pass, they are the
    answer; else the caller's own tools are measured one by one, in this same statement.

    Args:
        model_id: Whose vectors.
        dimensions: Of the model.
        parts: 1 for the question alone, 1 more for each clause.
        walked: Vectors that the index is walked for. It is written into the statement: of a bound
            limit a generic plan expects a tenth of the table, for which a scan is cheaper.
        words: False leaves the words out: `words_<p>` is 0.
        vectors: False leaves the vectors out, where a question could not be embedded: every
            distance is what the questions that no tool fits find, so that words alone decide.
        explained: Adds the tool that `explained` names, active or not, to the candidates, and the
            column `description_distance`: what the distance is without feedback.
    """
    # The clauses' own walks found nothing more: what is near a clause has its words or is near
    # the question (recall@5 of four sets the same within 0.4, half of the time).
    ids = [select(_near(model_id, dimensions, walked).c.id)] if vectors else []
    scored, possible = word_scores(parts) if words else (None, literal_column("0"))
    if scored is not None:
        with_words = _with_most_words(scored, parts)
        ids.append(
            select(tool_registry.c.id).join(
                with_words, with_words.c.tool_number == tool_registry.c.number
            )
        )
    visible = _visible()
    extra: list[ColumnElement[Any]] = []
    if explained:
        is_it = tool_registry.c.tool_name == bindparam("explained")
        visible = (visible[0], visible[1] | is_it)
        ids.append(select(tool_registry.c.id).where(visible[0], is_it))
        described = func.coalesce(tool_embedding.c.description_vector, tool_embedding.c.vector)
        extra.append(
            (_distance(dimensions, 0, of=described) if vectors else _stand_in(model_id)).label(
                "description_distance"
            )
        )
    candidate = union(*ids).subquery("candidate")
    found = (
        select(
            *_HIT_COLUMNS,
            *(
                (_distance(dimensions, part) if vectors else _stand_in(model_id)).label(
                    f"distance_{part}"
                )
                for part in range(parts)
            ),
            *extra,
            (_traffic(model_id) if vectors else literal_column("0.0", Double)).label("traffic"),
        )
        .select_from(candidate)
        .join(tool_registry, tool_registry.c.id == candidate.c.id)
        .join(tool_embedding, tool_embedding.c.tool_id == candidate.c.id)
        .where(_of_model(model_id), *visible)
    )
    if scored is None:
        return found.add_columns(
            literal_column("0").label("possible"),
            *(literal_column("0").label(f"words_{part}") for part in range(parts)),
        )
    return found.outerjoin(scored, scored.c.tool_number == tool_registry.c.number).add_columns(
        possible.label("possible"),
        *(func.coalesce(scored.c[f"words_{p}"], 0).label(f"words_{p}") for p in range(parts)),
    )


def _traffic(model_id: int) -> ColumnElement[float]:
    asked = cast(bindparam("vector_0", type_=Text), HALFVEC())
    product = func.inner_product(tool_calibration.c.traffic, asked)
    return func.coalesce(_calibrated(model_id, product), 0.0)


def _calibrated(model_id: int, value: ColumnElement[Any]) -> ScalarSelect[Any]:
    return (
        select(value)
        .where(
            tool_calibration.c.namespace == bindparam("namespace"),
            tool_calibration.c.embedding_model_id == literal_column(f"{model_id:d}", Integer),
        )
        .scalar_subquery()
    )


def _stand_in(model_id: int) -> ColumnElement[float]:
    """Return what stands for a distance that is not known."""
    found_by_strangers = (
        tool_calibration.c.center + tool_calibration.c.null_evidence * tool_calibration.c.spread
    )
    return 1 - func.coalesce(_calibrated(model_id, found_by_strangers), 0.5)


def nearest_tools_exactly(model_id: int, dimensions: int) -> Rows:
    """Return the k nearest active tools from a scan that cannot use the index, nearest first.

    Binds `namespace`, `vector_0` and `k`. Materialising the distances of the
    filtered rows leaves the planner no other way, whatever is set in the session.
    """
    measured = _measured(model_id, dimensions).cte("measured").prefix_with("MATERIALIZED")
    nearest = (
        select(measured.c.id, measured.c.distance)
        .order_by(measured.c.distance, measured.c.tool_name)
        .limit(_K)
        .subquery("nearest")
    )
    return (
        select(*_HIT_COLUMNS, nearest.c.distance)
        .select_from(nearest)
        .join(tool_registry, tool_registry.c.id == nearest.c.id)
        .order_by(nearest.c.distance, tool_registry.c.tool_name)
    )


# ---------------------------------------------------------------- by vector


def _near(model_id: int, dimensions: int, most: int) -> FromClause:
    """(id) of the tools nearest to the question, from a walk for so many."""
    distance = _distance(dimensions, 0)
    walked = (
        select(tool_embedding.c.tool_id, distance.label("distance"))
        .where(_of_model(model_id))
        .order_by(distance)
        .limit(literal_column(f"{most:d}", Integer))
        .cte("walked")
        .prefix_with("MATERIALIZED")
    )
    middle = (
        select(walked.c.distance)
        .order_by(walked.c.distance)
        .offset(func.least(_EF_SEARCH // 2, literal_column(f"{most:d}", Integer)) - 1)
        .limit(1)
        .scalar_subquery()
    )
    passed = (
        select(tool_registry.c.id, tool_registry.c.tool_name, walked.c.distance)
        .select_from(walked)
        .join(tool_registry, tool_registry.c.id == walked.c.tool_id)
        .where(*_visible())
        .cte("passed")
        .prefix_with("MATERIALIZED")
    )
    count = (
        select(func.count()).where(passed.c.distance <= middle).select_from(passed)
    ).scalar_subquery()
    measured = (
        _measured(model_id, dimensions)
        .where(count < _NEEDED)
        .cte("measured")
        .prefix_with("MATERIALIZED")
    )
    found = union_all(select(passed).where(count >= _NEEDED), select(measured)).subquery()
    return (
        select(found.c.id)
        .order_by(found.c.distance, found.c.tool_name)
        .limit(_LIMIT)
        .subquery("near")
    )


def _measured(model_id: int, dimensions: int) -> Rows:
    """(id, tool_name, distance) of what the caller sees."""
    return (
        select(
            tool_registry.c.id,
            tool_registry.c.tool_name,
            _distance(dimensions, 0).label("distance"),
        )
        .select_from(tool_embedding)
        .join(tool_registry, tool_registry.c.id == tool_embedding.c.tool_id)
        .where(_of_model(model_id), *_visible())
    )


def _distance(
    dimensions: int, part: int, *, of: ColumnElement[Any] = tool_embedding.c.vector
) -> ColumnElement[float]:
    sized = HALFVEC(dimensions)
    # A subquery is worked out once; a prepared statement would read the text for every row.
    question = select(cast(bindparam(f"vector_{part}", type_=Text), sized)).scalar_subquery()
    return cast(of, sized).op("<=>", return_type=Double())(question)


def _of_model(model_id: int) -> ColumnElement[bool]:
    return tool_embedding.c.embedding_model_id == literal_column(f"{model_id:d}", Integer)


def _visible() -> tuple[ColumnElement[bool], ...]:
    """Return the one rule of what a caller sees; a missing namespace matches none."""
    return (tool_registry.c.namespace == bindparam("namespace"), tool_registry.c.is_active)


def _with_most_words(scored: CTE, parts: int) -> FromClause:
    """(tool_number) of the tools that gain most by words, as `fusion.fuse` adds them up."""
    of_part = [scored.c[f"words_{part}"] for part in range(parts)]
    best_clause = [func.greatest(*of_part[1:])] if parts > 1 else []
    return (
        select(scored.c.tool_number)
        .order_by(sum(best_clause, of_part[0]).desc(), scored.c.tool_number)
        .limit(_LIMIT)
        .subquery("with_words")
    )
