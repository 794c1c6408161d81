"""All that a seed decides. Each concern draws from a stream of its own, so that one kind of fault can be left out and
the rest stays nearly as it was."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.core.keys import Rule, WithoutToken
from gateway.upstream.base import Capabilities
from tests.service.rig import rule

T = TypeVar("T")
BUCKET = "bkt"
OBJECTS = ("renders/j/out", "renders/j/other", "free/a", "moving/a", "open/j/a")
CONDITIONAL = ("PutObject", "CopyObject", "DeleteObject")
RULES: tuple[Rule, ...] = (
    rule("renders/{job}/**", "{job}"),
    rule("open/{job}/**", "{job}", without_token=WithoutToken.ALLOW),
    rule("moving/**", None, rekey=True),
)
"""What is not mapped (`free/…`) belongs to the key that last wrote it."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How often things go wrong: shares of all that could."""

    upstream: float
    reads: float
    store: float
    crash: float
    client: float


WEATHERS = (
    Weather(upstream=0.05, reads=0.02, store=0.01, crash=0.01, client=0.02),
    Weather(upstream=0.35, reads=0.08, store=0.02, crash=0.05, client=0.05),
    Weather(upstream=0.5, reads=0.2, store=0.08, crash=0.03, client=0.1),
    Weather(upstream=0.3, reads=0.05, store=0.0, crash=0.12, client=0.0),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much time lies between things, seconds."""

    between_s: tuple[float, ...]
    """From one who comes in to the next."""
    pauses_s: tuple[float, ...]
    """Of one between his requests."""
    body_s: tuple[float, ...]
    """Between the pieces of a body."""


PACES = (
    Pace((0, 0, 0.01, 0.3), (0, 0, 0, 0.1), (0,)),  # as much as can be meets
    Pace((0, 0, 0.01, 0.3, 2, 8, 20), (0, 0, 0, 0.1, 1, 5, 15, 40), (0, 0, 0, 1, 10, 45)),
    Pace((0, 1, 10, 35, 60), (0, 0, 1, 10), (0, 0, 1)),  # longer than the settle time-out
)


@dataclass(frozen=True, slots=True)
class Habit:
    """How often a worker asks for what."""

    put: int = 0
    delete: int = 0
    upload: int = 0
    copy: int = 0
    batch: int = 0
    check: int = 0
    version: int = 2
    """To delete one of an object's versions, where there are any."""


HABITS = (
    Habit(put=8, delete=3, upload=4, copy=2, batch=2, check=1),
    Habit(put=8, delete=2, check=1),
    Habit(put=2, upload=8, check=1),
    Habit(put=3, copy=6, check=1),
    Habit(put=4, delete=1, batch=5, check=1),
)


FOCUSED = 0.08
"""The share of the settings in which one object goes from key to key, and of those in which jobs are copied, while the
gateway dies again and again."""
LEASED = 0.35
"""The share of the settings in which tokens come from the gateway's own leases."""
RECORDED = 0.4
"""The share of the settings with conditional writes in which the bucket bears a record."""
VERSIONED = 0.2
"""The share of the settings in which the bucket keeps versions, from the start on or from when an operator says so."""
SWITCHED = 0.15
"""How often he changes his mind, of each who comes in."""


class Chance:
    """The decisions of one seed. `without`: kinds of faults that are left out."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self._streams: dict[str, random.Random] = {}
        self._seed = seed
        self._without = frozenset(without)
        self.calm = False
        """No more faults."""
        setting = self.stream("setting")
        self.weather = setting.choice(WEATHERS)
        self.capabilities = self._capabilities(setting)
        self.objects = tuple(setting.sample(OBJECTS, setting.choice([1, 2, 2, 3])))
        self.pace = setting.choice(PACES)
        self.habit = setting.choice(HABITS)
        self.database_lost = 0.5
        focus = self.stream("focus").random()
        if focus < 2 * FOCUSED:
            self.weather, self.database_lost = WEATHERS[3], 0.0
            # What one key, or a copy, had sent when the gateway died meets another's writes: rare otherwise.
            if focus < FOCUSED:
                self.objects = ("moving/a",)
            else:
                self.objects, self.habit = ("renders/j/out", "renders/j/other"), HABITS[3]
        self.leased = self.stream("lease").random() < LEASED
        self.lock_delay_s = self.stream("lease").choice((0, 0, 10))
        self.recorded = self.capabilities.conditional_put and self.stream("record").random() < RECORDED
        versions = self.stream("versions")
        self.versioned = versions.random() < VERSIONED
        self.versioning = versions.choice(("", "Enabled", "Suspended")) if self.versioned else ""
        if self.versioned and self.capabilities.conditional_delete and versions.random() < 0.5:
            self.capabilities = replace(self.capabilities, files_paths=True)

    @property
    def seaweedfs(self) -> bool:
        """The store is SeaweedFS, else S3 itself: they differ where versions are kept."""
        return self.capabilities.files_paths

    def stream(self, concern: str) -> random.Random:
        """Draws for one concern, the same for the same seed in every process."""
        if concern not in self._streams:
            self._streams[concern] = random.Random(f"{self._seed}/{concern}")
        return self._streams[concern]

    def happens(self, concern: str, kind: str, share: float) -> bool:
        """Whether a fault of that kind happens now."""
        drawn = self.stream(concern).random() < share
        return drawn and not self.calm and kind not in self._without

    def fate(self, concern: str, kinds: Sequence[str], share: float) -> str:
        """One of `kinds` with `share` together, or an empty string."""
        stream = self.stream(concern)
        drawn, kind = stream.random() < share, stream.choice(kinds)
        return kind if drawn and not self.calm and kind not in self._without else ""

    def pause(self, concern: str, *choices: float) -> float:
        drawn = self.stream(concern).choice(choices)
        return 0 if self.calm else drawn

    def _capabilities(self, setting: random.Random) -> Capabilities:
        kind = setting.choice(["honest", "honest", "deaf", "put"])
        all_of = kind == "honest"
        return Capabilities(
            conditional_put=kind != "deaf", conditional_copy=all_of, conditional_delete=all_of, files_paths=False
        )

    @property
    def conditional(self) -> tuple[str, ...]:
        honoured = (
            self.capabilities.conditional_put,
            self.capabilities.conditional_copy,
            self.capabilities.conditional_delete,
        )
        return tuple(name for name, held in zip(CONDITIONAL, honoured, strict=True) if held)
