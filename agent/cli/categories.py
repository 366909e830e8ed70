"""`toolrag categories`: keywords that tell what a question is about."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.cli.options import global_options
from agent.cli.output import Output, counted

__all__ = ["app"]

app = typer.Typer(
    help="Keywords of categories: tools of a category are preferred for questions with one of its "
    "keywords.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_categories(context: typer.Context, as_json: _Json = False) -> None:
    """List the categories of the namespace: their active tools and their keywords."""
    from agent.cli.context import opened_registry

    output = Output()
    options = global_options(context)
    with opened_registry(options, output) as registry:
        keywords = registry.categories()
        tools = registry.tool_categories()
    rows = [
        (name, tools.get(name, 0), keywords.get(name, ())) for name in sorted({*keywords, *tools})
    ]
    if as_json:
        output.json([{"name": name, "tools": n, "keywords": words} for name, n, words in rows])
    elif rows:
        output.table(
            ["name", "tools", "keywords"],
            [[name, f"{number:,}", ", ".join(words)] for name, number, words in rows],
            numeric=["tools"],
        )
    else:
        output.note(
            f"No categories in namespace {options.settings.namespace!r}. "
            "Register tools with `toolrag sync MODULE:ATTR`, which brings their categories."
        )


@app.command("set")
def set_category(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Category, as its tools have it.")],
    keywords: Annotated[
        list[str],
        typer.Argument(
            metavar="KEYWORD...",
            help="Words that a question about it holds; a phrase in quotes. They replace all.",
        ),
    ],
) -> None:
    """Give a category keywords, from the next search of every process on."""
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        registry.set_category(name, keywords)
        tools = registry.tool_categories()
    name = name.strip()
    output.text(f"{name} has {counted(len(keywords), 'keyword')} now.")
    if name not in tools:
        has = ", ".join(tools) or "none"
        output.note(f"No active tool has the category {name!r}; those of active tools: {has}.")


@app.command()
def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Category whose keywords are removed.")],
) -> None:
    """Remove the keywords of a category; its tools stay as they are."""
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        registry.remove_category(name)
    output.text(f"{name} has no keywords any more.")


@app.command()
def suggest(
    context: typer.Context,
    per_category: Annotated[
        int, typer.Option(min=1, max=500, help="Most keywords of one category.")
    ] = 10,
    as_json: _Json = False,
) -> None:
    """Propose keywords from the words of the tools themselves; nothing is stored."""
    from agent.cli.context import opened_registry

    output = Output()
    with opened_registry(global_options(context), output) as registry:
        suggested = registry.suggest_categories(per_category=per_category)
    if as_json:
        output.json([{"name": name, "keywords": words} for name, words in suggested.items()])
    elif suggested:
        output.table(
            ["name", "keywords"], [[name, ", ".join(words)] for name, words in suggested.items()]
        )
        output.note("Store those that fit: `toolrag categories set NAME KEYWORD...`.")
    else:
        output.note(
            "No active tool has a category of its own. Give some to tools in code, or with "
            "`toolrag tools update NAME --category TEXT`."
        )
