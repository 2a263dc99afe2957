"""Which cases of a long list run each time, and what chance goes by in them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet

FUZZ_SEED = os.environ.get("MILLPOND_FUZZ_SEED", "")
"""Makes the data of a run its own; without it each test has the same data each time."""


def covering(cases: Sequence[AbstractSet[Hashable]], size: int, seed: int) -> set[int]:
    """Places of `size` cases, each a set of values, that show as many values as they can. There are more of them
    where a value that several cases have would else be left out: that is a kind of case, not one case by its name."""
    having = Counter(value for case in cases for value in case)
    kinds = {value for value, count in having.items() if count > 1}
    shown: Counter[Hashable] = Counter()
    left = list(range(len(cases)))
    random.Random(seed).shuffle(left)
    chosen: set[int] = set()

    def gain(place: int) -> tuple[int, int, int]:
        """Kinds count first, or odd cases would use up the places; then what was shown least."""
        new = cases[place] - shown.keys()
        return len(new & kinds), len(new), -sum(shown[value] for value in cases[place])

    while left and (len(chosen) < size or kinds - shown.keys()):
        best = max(left, key=gain)
        left.remove(best)
        chosen.add(best)
        shown.update(cases[best])
    return chosen
