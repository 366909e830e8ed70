"""Categories: keywords that tell what a question is about."""

from __future__ import annotations

from collections.abc import Iterable

from registry import statements
from registry.errors import CategoryNotFoundError
from registry.routing import Router, checked_category, suggested_keywords
from registry.store_async._runtime import AsyncConnection
from registry.store_async.tools import AsyncTools

__all__ = ["AsyncCategories"]


class AsyncCategories(AsyncTools):
    """The part of the registry that keeps keywords of categories, and routes by them."""

    # Compiled once for the categories as they are; the stamp tells when they are others.
    _router: tuple[str, Router] = ("", Router({}))

    async def categories(self) -> dict[str, tuple[str, ...]]:
        """Return the categories that have keywords, in name order, with these in the order given.

        A tool belongs to a category by its own `category`; one without keywords is not routed to.
        """
        await self._check_schema()
        async with self._connection() as connection:
            rows = (await connection.execute(statements.list_categories(self.namespace))).all()
        return {row.name: tuple(row.keywords) for row in rows}

    async def set_category(self, name: str, keywords: Iterable[str]) -> None:
        """Give a category keywords, in place of those it had, from the next search on.

        Args:
            name: As tools have it in `category`; tools of that category may come later.
            keywords: Words or phrases that a question about it holds, 1 to 500, in every language
                that is asked in. Case, accents and plural s do not matter.

        Raises:
            ConfigurationError: The name or a keyword cannot be used, or says what another says.
        """
        name, checked = checked_category(name, keywords)
        await self._check_schema()
        async with self._connection() as connection:
            await connection.execute(statements.write_category(self.namespace, name, checked))

    async def remove_category(self, name: str) -> None:
        """Remove a category's keywords: no question is routed to it any more. Its tools stay.

        Raises:
            CategoryNotFoundError: It has no keywords in this namespace.
        """
        await self._check_schema()
        async with self._connection() as connection:
            done = await connection.execute(statements.delete_category(self.namespace, name))
            if not done.rowcount:
                rows = (await connection.execute(statements.list_categories(self.namespace))).all()
                raise CategoryNotFoundError(
                    name, namespace=self.namespace, known=[row.name for row in rows]
                )

    async def tool_categories(self) -> dict[str, int]:
        """Return the categories of active tools, in name order, with their number of tools."""
        await self._check_schema()
        async with self._connection() as connection:
            rows = (await connection.execute(statements.tool_categories(self.namespace))).all()
        return {row.category: row.tools for row in rows}

    async def suggest_categories(self, *, per_category: int = 10) -> dict[str, tuple[str, ...]]:
        """Propose keywords for the categories of the active tools, from the tools' own words.

        Nothing is stored: look at them, drop what misleads, and give them to `set_category`.

        Args:
            per_category: Most keywords of one category.
        """
        records = await self.list_tools()
        return suggested_keywords((r.spec for r in records), per_category=per_category)

    async def _current_router(self, connection: AsyncConnection, stamp: str) -> Router:
        """Return the router of the categories with this stamp, compiled anew if they changed."""
        if self._router[0] != stamp:
            rows = (await connection.execute(statements.list_categories(self.namespace))).all()
            # The stamp that was read with these rows; the one given may be older by now.
            read = rows[0].categories_stamp if rows else stamp
            self._router = (read, Router({row.name: row.keywords for row in rows}))
        return self._router[1]
