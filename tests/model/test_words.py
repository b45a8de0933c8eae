from __future__ import annotations

from silomix.model.sentences import listing, plural, quoted


def test_a_noun_follows_its_count():
    assert plural(1, "row") == "1 row"
    assert [plural(count, "draw") for count in (0, 2000)] == ["0 draws", "2,000 draws"]


def test_only_the_first_of_many_names_are_listed():
    assert listing(["a", "b"], 2) == "a, b"
    assert listing(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert quoted(["a", "b c"]) == "'a', 'b c'"
    assert quoted([]) == ""
