from __future__ import annotations

import numpy as np
import pytest

from silomix.errors import SettingsError
from silomix.model.sentences import at_least, listing, one_of, plural, quoted


def test_counts_and_lists():
    assert [plural(count, "row") for count in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert listing(["a", "b"], 2) == "a, b"
    assert listing(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert quoted(["a", "b c"]) == "'a', 'b c'"


def test_one_argument_is_refused_by_its_name():
    assert at_least("rows", np.int64(3), 3) == 3
    for wrong in (2, 3.0, True, "3", None):
        with pytest.raises(SettingsError, match=r"rows is .* at least 3") as caught:
            at_least("rows", wrong, 3)
        assert caught.value.settings == {"rows": None}
    one_of("design", "nested", ["nested", "other"])
    with pytest.raises(SettingsError, match="'nested'") as caught:
        one_of("design", "Nestd", ["nested", "other"])
    assert caught.value.settings == {"design": "Nestd"}
