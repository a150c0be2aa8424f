"""Tables that are searched, filtered, sorted and paged by URL parameters.

A `Table` is declared once, at its page. `view` applies the parameters of a request to the rows, and
returns the rows of one page with the addresses of all other views. The template renders it with the
macros of `tables.html`.

| parameter       | meaning                                                                  |
|-----------------|--------------------------------------------------------------------------|
| `q`             | text that rows must contain, in any case                                 |
| name of filter  | value of this filter                                                     |
| `sort`          | name of a column; with `-` before it, descending                         |
| `page`          | number of the page, from 1                                               |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct

from penstock.apps.console.formats import query
from penstock.base.settings import whole_number

if TYPE_CHECKING:
    from starlette.requests import Request

PAGE_ROWS: Final = 50
PAGES_MAX: Final = 10_000_000
R = TypeVar("R")


class Column(Struct, Generic[R], frozen=True, kw_only=True):
    """Column of a table; it can be sorted if it has a `key`, which returns None if unknown."""

    name: str
    title: str
    key: Callable[[R], Any] | None = None
    number: bool = False


class Filter(Struct, Generic[R], frozen=True, kw_only=True):
    """Choice above a table. `choices` are the titles by value; the value "" shows all rows."""

    name: str
    title: str
    choices: Mapping[str, str]
    test: Callable[[R, str], bool]
    default: str = ""


class Heading(Struct, frozen=True, kw_only=True):
    """Heading of a column. `order` is `ascending`, `descending` or `none`; `url` sorts by it."""

    title: str
    number: bool
    url: str
    order: str


class TableView(Struct, Generic[R], frozen=True, kw_only=True):
    """Rows of one page of a table, and the addresses of its other views."""

    path: str
    rows: Sequence[R]
    columns: Sequence[Column[R]]
    filters: Sequence[tuple[Filter[R], str]]
    """Filters with their chosen values."""
    values: Mapping[str, str]
    """Parameters of this view, without the page."""
    sort: str
    search: str
    """Label of the search field; empty without search."""
    total: int
    """Number of rows on all pages."""
    all_rows: int
    """Number of rows without search and filters."""
    page: int
    pages: int

    @property
    def first(self) -> int:
        return (self.page - 1) * PAGE_ROWS + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.total, self.page * PAGE_ROWS)

    @property
    def headings(self) -> list[Heading]:
        return [self._heading(column) for column in self.columns]

    def url(self, **changes: object) -> str:
        """Return the address of this view with other parameters."""
        return self.path + query({**self.values, **changes})

    def _heading(self, column: Column[R]) -> Heading:
        current = self.sort.removeprefix("-") == column.name
        descending = self.sort.startswith("-")
        order = ("descending" if descending else "ascending") if current else "none"
        first = f"-{column.name}" if column.number else column.name
        other = column.name if descending else f"-{column.name}"
        url = "" if column.key is None else self.url(sort=other if current else first)
        return Heading(title=column.title, number=column.number, url=url, order=order)


class Table(Generic[R]):
    """Declaration of a table."""

    def __init__(
        self,
        *columns: Column[R],
        sort: str,
        text: Callable[[R], str] | None = None,
        search: str = "Search",
        filters: Sequence[Filter[R]] = (),
        kept: Sequence[str] = (),
    ) -> None:
        """`text` returns the text of a row that the search looks through, `search` is its label.

        `sort` is the order without the parameter. `kept` are further parameters of the page, which
        stay in the addresses of all views.
        """
        self._columns = columns
        self._sort = sort
        self._text = text
        self._search = search
        self._filters = filters
        self._keys = {column.name: column.key for column in columns if column.key is not None}
        self.parameters = ("q", "sort", "page", *(choice.name for choice in filters), *kept)
        """Query parameters that the page's route must declare."""

    def view(self, request: Request, rows: Sequence[R]) -> TableView[R]:
        given = request.query_params
        values = {name: given[name] for name in self.parameters if given.get(name)}
        page_text = values.pop("page", "1")
        chosen = self._chosen(values)
        found = self._found(rows, values.get("q", ""), chosen)
        sort, found = self._sorted(values, found)
        pages = max(1, -(-len(found) // PAGE_ROWS))
        page = min(pages, max(1, whole_number(page_text, PAGES_MAX) or 1))
        return TableView(
            path=quote(request.url.path),
            rows=found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
            columns=self._columns,
            filters=chosen,
            values=values,
            sort=sort,
            search="" if self._text is None else self._search,
            total=len(found),
            all_rows=len(rows),
            page=page,
            pages=pages,
        )

    def _chosen(self, values: dict[str, str]) -> list[tuple[Filter[R], str]]:
        chosen = []
        for choice in self._filters:
            value = values.get(choice.name, choice.default)
            if value not in choice.choices:
                value = choice.default
            chosen.append((choice, value))
        return chosen

    def _found(
        self, rows: Sequence[R], words: str, chosen: Sequence[tuple[Filter[R], str]]
    ) -> Sequence[R]:
        if words and self._text is not None:
            text, lower = self._text, words.lower()
            rows = [row for row in rows if lower in text(row).lower()]
        for choice, value in chosen:
            if value:
                test = choice.test
                rows = [row for row in rows if test(row, value)]
        return rows

    def _sorted(self, values: dict[str, str], rows: Sequence[R]) -> tuple[str, Sequence[R]]:
        sort = values.get("sort", self._sort)
        key = self._keys.get(sort.removeprefix("-"))
        if key is None:
            sort, key = self._sort, self._keys[self._sort.removeprefix("-")]
        ordered = key
        return sort, sorted(
            rows,
            key=lambda row: ((value := ordered(row)) is not None, value),
            reverse=sort.startswith("-"),
        )
