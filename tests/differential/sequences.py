"""Sequences of requests, as hypothesis makes and shrinks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway.core.names import filed_name
from tests.differential import values
from tests.differential.buckets import bucket_steps, elsewhere, setting_steps
from tests.differential.objects import Kinds, Scene, Steps, object_steps
from tests.differential.steps import Bytes, Fence, Step, UploadId, UploadKey, fence
from tests.differential.uploads import upload_steps

MOST_STEPS = 12
FENCES = ("none", "none", "rule", "header", "object")


@dataclass(frozen=True)
class Sequence:
    """Requests that are sent one after the other, to a bucket that is empty at first."""

    fence: Fence
    versioned: bool
    steps: tuple[Step, ...]
    settings: bool = False
    """The bucket's settings are changed: it serves no other sequence."""

    def __str__(self) -> str:
        kind = f"fence: {self.fence.name}, {'versioned' if self.versioned else 'plain'} bucket"
        return "\n".join([kind, *(f"  {number}. {told(step)}" for number, step in enumerate(self.steps, 1))])


def told(step: Step) -> str:
    """A step in one line: what it has beyond a plain one."""
    plain = Step(step.operation, step.method)
    said = [f"{name}={value!r}" for name, value in vars(step).items() if value != getattr(plain, name)]
    return f"{step.operation} {step.method} {' '.join(said)}"


@lru_cache(maxsize=64)
def families(scene: Scene) -> dict[str, list[Kinds]]:
    """What a sequence's steps are drawn from, by the sequence's family; as often as it is to be drawn."""
    plain = {**object_steps(scene), **bucket_steps(scene)}
    absent: Kinds = {name: (weight, partial(_elsewhere, scene, build)) for name, (weight, build) in plain.items()}
    return {
        "objects": [plain] * 12 + [absent],
        "uploads": [upload_steps(scene)] * 5 + [plain],
        "settings": [setting_steps()] * 2 + [plain],
    }


def _elsewhere(scene: Scene, build: Callable[[], Steps]) -> Steps:
    return elsewhere(scene, build())


@st.composite
def _step(draw: st.DrawFn, tables: list[Kinds]) -> Step:
    """One step. Only the strategy that is drawn from is built: building all costs more than sending."""
    table = draw(st.sampled_from(tables))
    return draw(table[draw(st.sampled_from(_names(tuple((name, kind[0]) for name, kind in table.items()))))][1]())


@lru_cache
def _names(weights: tuple[tuple[str, int], ...]) -> list[str]:
    return [name for name, weight in weights for _ in range(weight)]


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """Any sequence."""
    family = draw(st.sampled_from(["objects"] * 6 + ["uploads"] * 4 + ["settings"]))
    spoken = fence(draw(st.sampled_from(FENCES)), on_parts=draw(st.booleans()))
    versioned = draw(st.sampled_from([False, False, True])) and family != "settings"
    # A key that files its object elsewhere would leave the rule.
    key = values.KEYS.map(spoken.prefix.__add__).filter(lambda key: filed_name(key).startswith(spoken.prefix))
    scene = Scene(tuple(draw(st.lists(key, min_size=1, max_size=3, unique=True))), versioned, spoken.name)
    steps = draw(st.lists(_step(families(scene)[family]), min_size=1, max_size=MOST_STEPS))
    return Sequence(spoken, versioned, (*draw(_beginnings(scene, family)), *steps), family == "settings")


def _beginnings(scene: Scene, family: str) -> st.SearchStrategy[tuple[Step, ...]]:
    """What mostly comes first, so that the steps which follow find objects and an upload."""
    puts = tuple(Step("PutObject", "PUT", key, body=Bytes(1000)) for key in scene.keys)
    if family != "uploads":
        return st.sampled_from([(), puts[:1], puts, puts])
    part = Step("UploadPart", "PUT", UploadKey(0), (("partNumber", "1"), ("uploadId", UploadId(0))), body=Bytes(100))
    create = Step("CreateMultipartUpload", "POST", scene.keys[0], (("uploads", ""),))
    return st.sampled_from([(), (create,), (create, part), (*puts[-1:], create), (*puts[-1:], create, part)])


def every_operation() -> set[str]:
    """The rows of the operation table that are generated, found out by drawing."""
    scene = Scene(("k", "other"), False, "none")
    kinds = {**object_steps(scene), **bucket_steps(scene), **upload_steps(scene), **setting_steps()}
    found: set[str] = set()
    for _, build in kinds.values():

        @settings(max_examples=20, derandomize=True, database=None, phases=[Phase.generate])
        @given(build())
        def draw(step: Step) -> None:
            found.add(step.operation)

        draw()
    return found
