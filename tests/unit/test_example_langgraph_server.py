"""The example for LangGraph's own server: what its `langgraph.json` names is a graph."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from langgraph.graph.state import CompiledStateGraph

FOLDER = Path(__file__).parents[2] / "examples" / "langgraph_server"


def test_the_graph_that_is_named_compiles_and_connects_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLRAG_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/nowhere")
    monkeypatch.delenv("TOOLRAG_MODEL", raising=False)
    said = json.loads((FOLDER / "langgraph.json").read_text(encoding="utf-8"))
    [target] = said["graphs"].values()
    file, _, name = target.partition(":")
    assert all((FOLDER / place).resolve().is_dir() for place in said["dependencies"])
    spec = importlib.util.spec_from_file_location("langgraph_server_example", FOLDER / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent = getattr(module, name)
    assert isinstance(agent, CompiledStateGraph)
    # The server brings its own.
    assert not agent.checkpointer
