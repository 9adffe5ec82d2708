"""Narratives that are cut down to their room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fitting import fitted
from tests.core.conversations import byte_count

STORY = "## Intent\nTo count.\n## Artifacts\n" + "\n".join(f"row {n}" for n in range(50)) + "\n## Next\nGo on.\nStop."


def test_the_longest_section_gives_way_at_its_end() -> None:
    """Short sections, and what comes last in the narrative, stay whole."""
    cut = fitted(STORY, 150, byte_count)
    assert byte_count(cut) <= 150
    assert cut.startswith("## Intent\nTo count.\n## Artifacts\nrow 0\nrow 1\n")
    assert cut.endswith("## Next\nGo on.\nStop.")
    assert "row 49" not in cut


def test_what_fits_stays_as_it_is() -> None:
    """Not a byte changes."""
    assert fitted(STORY, byte_count(STORY), byte_count) == STORY


@given(st.lists(st.text(st.sampled_from("#ab \n"), max_size=9)).map("\n".join), st.integers(0, 90))
def test_every_section_keeps_its_heading_and_first_line(text: str, room: int) -> None:
    """What is left are lines of the text in order, and it is within the room unless nothing more can go."""
    cut = fitted(text, room, byte_count)
    lines = iter(text.split("\n"))
    assert all(line in lines for line in cut.split("\n"))
    assert [x for x in cut.split("\n") if x.startswith("#")] == [x for x in text.split("\n") if x.startswith("#")]
    assert byte_count(cut) <= max(room, 0) or len(cut.split("\n")) <= 2 * (1 + text.count("#"))
