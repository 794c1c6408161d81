"""A rule that is taken away: by a function or method that lacks it in place of the product's (or of the step that
stands for the service's), and the smallest world in which the explorer finds the harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.model.size import Op, Size

Patches = list[tuple[object, str, object]]
CORE, SERVICE = "core", "service"


@dataclass(frozen=True)
class Switch:
    """One rule, or one of its counterexamples."""

    rule: str
    what: str
    """What is taken away."""
    where: str
    """Whose code is replaced: the core's own, or the step that stands for the service's."""
    patches: Callable[[], Patches]
    size: Size

    @contextmanager
    def off(self) -> Iterator[None]:
        """The world without it."""
        patches = [patch.object(owner, name, new) for owner, name, new in self.patches()]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in reversed(patches):
                one.stop()


def world(*ops: Op, **budgets: Any) -> Size:
    """A small one."""
    return Size("", ops, **{"writes": 1, "grants": 1, "honoured": False, **budgets})
