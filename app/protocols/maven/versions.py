"""The order of versions that Maven has ("Version Order Specification" of its POM reference). Pure functions.

A version is a list of numbers, qualifiers and lists: a hyphen, each change between digits and letters, and a
qualifier before a digit or at the end opens a list in the list. Zeros and release qualifiers before the end
of a list, or before a list, are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

# alpha < beta < milestone < rc < snapshot < (release) < sp < any other, in the order of letters
_QUALIFIERS = {"alpha": 0, "beta": 1, "milestone": 2, "rc": 3, "snapshot": 4, "": 5, "sp": 6}
_ALIASES = {"ga": "", "final": "", "release": "", "cr": "rc"}
_BEFORE_DIGITS = {"a": "alpha", "b": "beta", "m": "milestone"}
_OTHER = 7
_RELEASE = (_QUALIFIERS[""], "")

# A number, a qualifier as (rank, letters), or a list of items.
_Item = int | tuple[int, str] | list[Any]


def in_order(versions: Iterable[str]) -> list[str]:
    """Lowest first; versions that compare equal in the order of their characters."""
    keyed = [(_parsed(version), version) for version in sorted(versions)]
    keyed.sort(key=lambda each: _KEY(each[0]))
    return [version for _, version in keyed]


def compare(left: str, right: str) -> int:
    """Negative when `left` is lower, positive when it is higher, 0 when Maven takes them for equal."""
    return _compare(_parsed(left), _parsed(right))


def _parsed(version: str) -> list[Any]:
    lists: list[list[Any]] = [[]]

    def open_list() -> None:
        lists.append([])
        lists[-2].append(lists[-1])

    for text, separator in _tokens(version.lower()):
        # `.x1` counts as `-x1`.
        if separator in ("", "end") and not text.isdecimal() and lists[-1]:
            open_list()
        lists[-1].append(_item(text, before_digit=separator == ""))
        if separator in ("", "-"):
            open_list()
    for each in reversed(lists):
        _trim(each)
    return lists[0]


def _tokens(version: str) -> Iterable[tuple[str, str]]:
    """Each text with what follows it: a dot, a hyphen, nothing where digits meet letters, or `end`."""
    start = 0
    for position, char in enumerate(version):
        if char in ".-":
            yield version[start:position], char
            start = position + 1
        elif position > start and version[position - 1].isdecimal() != char.isdecimal():
            yield version[start:position], ""
            start = position
    if start < len(version):
        yield version[start:], "end"


def _item(text: str, *, before_digit: bool) -> _Item:
    if not text:
        return 0
    if text.isdecimal():
        return int(text)
    if before_digit:
        text = _BEFORE_DIGITS.get(text, text)
    text = _ALIASES.get(text, text)
    return (_QUALIFIERS[text], "") if text in _QUALIFIERS else (_OTHER, text)


def _trim(items: list[Any]) -> None:
    for index in reversed(range(len(items))):
        if items[index] in (0, _RELEASE, []):
            del items[index]
        elif not isinstance(items[index], list):
            return


def _compare(left: list[Any], right: list[Any]) -> int:
    # Not recursive: lists lie in each other as deep as a version has hyphens.
    walks = [zip_longest(left, right)]
    while walks:
        for one, other in walks[-1]:
            if (isinstance(one, list) and isinstance(other, list | None)) or (one is None and isinstance(other, list)):
                walks.append(zip_longest(one or (), other or ()))
                break
            if difference := _difference(one, other):
                return difference
        else:
            walks.pop()
    return 0


def _difference(left: _Item | None, right: _Item | None) -> int:
    """Of items that are not both lists; a number is higher than a list, and that higher than a qualifier."""
    if left is None:
        left = 0 if isinstance(right, int) else _RELEASE
    if right is None:
        right = 0 if isinstance(left, int) else _RELEASE
    if _KINDS[type(left)] != _KINDS[type(right)]:
        return _KINDS[type(left)] - _KINDS[type(right)]
    return (left > right) - (left < right)  # type: ignore[operator]  # of one kind, and no lists


_KEY = functools.cmp_to_key(_compare)
_KINDS: dict[type, int] = {tuple: 0, list: 1, int: 2}
