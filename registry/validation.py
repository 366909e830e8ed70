"""Pure: whether the registry fits the code of this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from registry.embedding import Embedder
from registry.errors import SchemaVersionError
from registry.migrate import check_revision
from registry.types import EmbeddingModel, ToolRecord, ToolSpec

__all__ = [
    "Finding",
    "ValidationReport",
    "schema_report",
    "validation_report",
    "without_vector_detail",
]

FindingKind = Literal[
    "schema_revision",
    "embedding_model",
    "not_in_code",
    "not_registered",
    "text_differs",
    "schema_differs",
    "without_vector",
    "switched_off",
    "cannot_be_registered",
]
_TEXT_FIELDS = {"description", "display_name", "category", "examples"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that does not fit.

    Attributes:
        tool_name: None where it is not about one tool.
        detail: What was found.
        advice: What to do about it.
    """

    kind: FindingKind
    tool_name: str | None
    detail: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """What does not fit between registry and code, by kind and name.

    Attributes:
        checked: Number of tools looked at, in registry and code together.
    """

    checked: int
    findings: Sequence[Finding]

    @property
    def is_valid(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        if self.is_valid:
            return f"{self.checked} tools checked: registry and code agree."
        lines = [f"{self.checked} tools checked, {len(self.findings)} findings:"]
        for finding in self.findings:
            name = f" {finding.tool_name}" if finding.tool_name else ""
            lines.append(f"- {finding.kind}{name}: {finding.detail} {finding.advice}")
        return "\n".join(lines)


def schema_report(revision: str | None) -> ValidationReport | None:
    """Return the report of a database whose schema does not fit this release, else None."""
    try:
        check_revision(revision)
    except SchemaVersionError as error:
        finding = Finding(
            kind="schema_revision",
            tool_name=None,
            detail=f"found {error.found or 'none'}, expected {error.expected}.",
            advice=str(error),
        )
        return ValidationReport(checked=0, findings=[finding])
    return None


def validation_report(
    specs: Sequence[ToolSpec],
    *,
    refused: Mapping[str, str],
    records: Sequence[ToolRecord],
    without_vector: Mapping[str, str],
    switched_off: Mapping[str, str],
    model: EmbeddingModel | None,
    embedder: Embedder,
) -> ValidationReport:
    """Compare the tools of a namespace with those of code.

    Args:
        specs: The tools of this process, one a name.
        refused: Those that cannot be registered, with the reason.
        records: Every registered tool, active or not.
        without_vector: Names of those that have no vector of their present text, and what
            follows from it.
        switched_off: Names of those that a sync switched off, and when and by whom.
        model: The embedding model that serves, None where there is none yet.
        embedder: The configured one.
    """
    findings: list[Finding] = []
    if model is not None and not _is_of(model, embedder):
        findings.append(
            Finding(
                kind="embedding_model",
                tool_name=None,
                detail=f"the vectors are of {model}, {embedder.name} is configured.",
                advice="Configure the stored model, or run `toolrag embeddings migrate`.",
            )
        )
    registered = {record.spec.tool_name: record for record in records}
    code = {spec.tool_name: spec for spec in specs}
    bindings = {spec.binding for spec in specs}
    for name, reason in refused.items():
        findings.append(
            Finding(
                kind="cannot_be_registered",
                tool_name=name,
                detail=f"it is in code, but {reason}.",
                advice="Mend it.",
            )
        )
    for name, record in sorted(registered.items()):
        if record.is_active and record.spec.binding not in bindings:
            findings.append(
                Finding(
                    kind="not_in_code",
                    tool_name=name,
                    detail=f"its binding {record.spec.binding!r} is not in the toolset, so it is "
                    "never offered.",
                    advice=_advice_on_missing(record.spec, code.values()),
                )
            )
        if record.is_active and name in without_vector:
            findings.append(
                Finding(
                    kind="without_vector",
                    tool_name=name,
                    detail=without_vector[name],
                    advice="Sync again.",
                )
            )
    for name, spec in sorted(code.items()):
        if name not in registered:
            findings.append(
                Finding(
                    kind="not_registered",
                    tool_name=name,
                    detail="it is in code but not in the registry, so no search finds it.",
                    advice="Sync.",
                )
            )
            continue
        findings.extend(_differences(registered[name], spec))
        if name in switched_off:
            findings.append(
                Finding(
                    kind="switched_off",
                    tool_name=name,
                    detail=f"it is in code, but switched off {switched_off[name]}, when a sync did "
                    "not bring it.",
                    advice=f"To offer it again: `toolrag tools activate {name}`.",
                )
            )
    order = list(FindingKind.__args__)
    findings.sort(key=lambda found: (order.index(found.kind), found.tool_name or ""))
    return ValidationReport(checked=len(registered.keys() | code.keys()), findings=findings)


def without_vector_detail(*, is_stale: bool) -> str:
    """Return what it means that a tool has no vector of its present text."""
    if is_stale:
        return "its vector is of an earlier text, which is what searches find it by."
    return "it has no vector, so no search finds it by its meaning."


def _is_of(model: EmbeddingModel, embedder: Embedder) -> bool:
    same = (model.name, model.revision) == (embedder.name, embedder.revision)
    return same and embedder.dimensions in (None, model.dimensions)


def _advice_on_missing(spec: ToolSpec, code: Iterable[ToolSpec]) -> str:
    if any(other.origin == spec.origin for other in code):
        return "Run `toolrag sync … --missing deactivate`, or add the tool to the toolset."
    # A sync answers for the origins it is given, and no other.
    return f"Deactivate it, or add the tools of origin {spec.origin} to the toolset."


def _differences(record: ToolRecord, spec: ToolSpec) -> list[Finding]:
    differing = [
        field.name
        for field in fields(ToolSpec)
        if getattr(record.spec, field.name) != getattr(spec, field.name)
    ]
    edited = (
        "It was edited in the registry; `toolrag sync … --overwrite-edits` brings code's."
        if record.is_edited
        else "Sync."
    )
    findings: list[Finding] = []
    texts = [name for name in differing if name in _TEXT_FIELDS]
    others = [name for name in differing if name not in _TEXT_FIELDS]
    if texts:
        detail = f"{', '.join(texts)} differ from code (version {record.version})."
        findings.append(
            Finding(
                kind="text_differs", tool_name=record.spec.tool_name, detail=detail, advice=edited
            )
        )
    if others:
        detail = f"{', '.join(others)} differ from code (version {record.version})."
        findings.append(
            Finding(
                kind="schema_differs", tool_name=record.spec.tool_name, detail=detail, advice=edited
            )
        )
    return findings
