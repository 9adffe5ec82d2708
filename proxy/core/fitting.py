"""A narrative cut down to its room: every section keeps its beginning, the longest gives way first."""

from __future__ import annotations

from collections.abc import Callable


def fitted(text: str, room_tokens: int, count: Callable[[str], int]) -> str:
    """Return as much of a narrative as has room, by whole lines; headings and their first lines stay."""
    sections: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.startswith("#") and sections[-1]:
            sections.append([])
        sections[-1].append(line)
    over = count(text) - room_tokens
    while over > 0:
        longest = max(sections, key=lambda lines: sum(map(len, lines[2:])))
        if len(longest) <= 2:
            break
        over -= count(longest.pop()) + 1
    return "\n".join(line for lines in sections for line in lines)
