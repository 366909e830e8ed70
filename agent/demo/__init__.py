"""Tools that really work offline, and the questions that show them."""

from __future__ import annotations

from agent.demo.questions import DEMO_QUESTIONS, RETRIEVAL_QUESTIONS, DemoQuestion
from agent.demo.toolset import demo_toolset

__all__ = ["DEMO_QUESTIONS", "RETRIEVAL_QUESTIONS", "DemoQuestion", "demo_toolset"]
