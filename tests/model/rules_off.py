"""Each rule taken away, of writes, leases, completions and the bucket's record; those of queues are in
`queue_rules_off.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gateway.core import gate as core_gate
from gateway.core import write as core_write
from gateway.core.gate import Admission, Gate, Send
from gateway.core.keys import Token
from gateway.core.write import Answer, Phase, Signal, Verdict
from gateway.stores import rules as store_rules
from tests.model import admission, guarantees, leases, process, sending, steps, uploads, upstream
from tests.model.queue_rules_off import SWITCHES as OF_QUEUES
from tests.model.size import Op
from tests.model.switch import CORE, SERVICE, Patches, Switch, world
from tests.model.world import NO_OBJECT, At, Flight, Request, Upload, Way, Why, World

PUT, STREAM, DELETE, COPY, CREATE = Op.PUT, Op.STREAM, Op.DELETE, Op.COPY, Op.CREATE


# --- the gate's own


def _any_hand_over() -> tuple[object, str, object]:
    """The gate insists that only the floor is handed over; without a rule it may be asked for something else."""
    hand_over = Gate.hand_over

    def lenient(self: Gate, token: Any, now: float) -> float | None:
        return hand_over(self, token, now) if token == self.floor else None

    return (Gate, "hand_over", lenient)


def floor_not_looked_at() -> Patches:
    def may_enter(self: Gate, send: Send) -> bool:
        return send.phase is Phase.STAGED

    return [(Gate, "refuse_overtaken", lambda self, token: None), (Gate, "may_enter", may_enter), _any_hand_over()]


def floor_in_memory() -> Patches:
    admit = Gate.admit

    def at_once(self: Gate, token: int) -> Admission:
        admit(self, token)  # type: ignore[arg-type]
        self.floor = self.completed_floor = max(self.floor, token)
        return Admission.GO

    return [(Gate, "admit", at_once)]


def floors_fall() -> Patches:
    def raised(self: Gate, floor: int, sealed_token: int = 0) -> list[Send]:
        self.floor = floor
        return []

    return [(Gate, "raised", raised), _any_hand_over()]


def not_asked_at_the_commit_point() -> Patches:
    def enter(self: Gate, send: Send) -> None:
        send.phase = Phase.COMMITTING

    return [(Gate, "enter", enter), (sending, "pass_gate", lambda w, r, f: w.gates[r.key].enter(f.send))]


def nobody_waited_for() -> Patches:
    return [(Gate, "_lower_unsettled", lambda self, token: [])]


def seals_forgotten() -> Patches:
    raised = Gate.raised
    return [(Gate, "raised", lambda self, floor, sealed_token=0: raised(self, floor))]


def tokenless_always_pass() -> Patches:
    refuse = Gate.refuse_overtaken

    def refuse_overtaken(self: Gate, token: int) -> None:
        if token:
            refuse(self, token)  # type: ignore[arg-type]

    def may_enter(self: Gate, send: Send) -> bool:
        return send.phase is Phase.STAGED and (not send.token or send.token == self.floor)

    return [(Gate, "refuse_overtaken", refuse_overtaken), (Gate, "may_enter", may_enter)]


def lost_answers_settle() -> Patches:
    lost = Gate.lost

    def settled(self: Gate, send: Send, now: float) -> None:
        lost(self, send, now)
        self.settle(send, Signal.TIMED_OUT)

    return [(Gate, "lost", settled)]


def newer_write_settles() -> Patches:
    settle = Gate.settle

    def settles_all(self: Gate, send: Send, signal: Signal) -> None:
        settle(self, send, signal)
        for other in list(self.unsettled()):
            if signal is Signal.APPLIED and other.phase is Phase.IN_DOUBT:
                settle(self, other, Signal.NONCE_SEEN)

    return [(Gate, "settle", settles_all)]


def server_errors_settle() -> Patches:
    classify = core_write.classify
    refuse = lambda status, code: Answer.REFUSED if status >= 500 else classify(status, code)  # noqa: E731
    return [(core_write, "classify", refuse)]


def any_look_settles() -> Patches:
    return [(core_write, "judge", lambda state, key, token, nonce: Verdict.OURS if nonce else Verdict.MOVED)]


def starts_taken_for_clean() -> Patches:
    class Trusting(Gate):
        def __init__(self, key: Any, *durable: int, unsettled_until: float = -math.inf) -> None:
            super().__init__(key, *durable[:3])

    return [(core_gate, "Gate", Trusting)]


def floor_for_completed_floor() -> Patches:
    raised = store_rules.raised
    return [(store_rules, "raised", lambda fence, token, at: store_rules.handed_over(raised(fence, token, at), token))]


def head_judged_without_tokens() -> Patches:
    judge = core_write.judge

    def blind(state: Any, key: Any, token: Any, nonce: Any) -> Verdict:
        verdict = judge(state, key, token, nonce)
        return Verdict.MOVED if verdict is Verdict.HIGHER_TOKEN else verdict

    return [(core_write, "judge", blind)]


# --- the service's


def tail_not_withheld() -> Patches:
    stage = sending.stage

    def at_once(w: World, r: Request) -> None:
        stage(w, r)
        if r.flight is not None:
            r.flight.way = Way.UNDER_WAY

    def enabled_steps(w: World, r: Request) -> Iterator[str]:
        if r.at is At.STAGED and r.flight is not None and r.flight.way is Way.UNDER_WAY:
            yield "land"
        yield from steps_of(w, r)

    steps_of = steps._steps_of
    return [(sending, "stage", at_once), (steps, "_steps_of", enabled_steps)]


def granted_before_the_hand_over() -> Patches:
    learn = admission.learn

    def early(w: World, r: Request) -> None:
        learn(w, r)
        if r.op is Op.GRANT and r in w.requests:
            guarantees.acknowledged(w, r)

    return [(admission, "learn", early), (steps, "_STEPS", {**steps._STEPS, "learn": early})]


def unconditional() -> Patches:
    return [
        (sending, "ready", _ready_unconditional),
        (sending, "conditional", lambda w, r: False),
    ]


def _ready_unconditional(w: World, r: Request) -> None:
    r.at = At.READY
    if r.op is Op.STREAM:
        sending.stage(w, r)


def resends_pass_by_the_gate() -> Patches:
    pass_gate = sending.pass_gate

    def first_only(w: World, r: Request, f: Flight) -> None:
        if r.why is not Why.MOVED:
            pass_gate(w, r, f)
        elif f.send is not None:
            f.send.phase = Phase.COMMITTING

    def stage(self: Gate, token: Any, settle_timeout_s: float) -> Send:
        send = Send(token, settle_timeout_s)
        self._sends[send] = None
        return send

    return [(sending, "pass_gate", first_only), (sending, "admit_anew", lambda w, r: None), (Gate, "stage", stage)]


def deletes_answered_from_memory() -> Patches:
    conditioned = sending.conditioned

    def trusting(w: World, r: Request) -> None:
        if r.op is Op.DELETE and w.memory[r.obj] == NO_OBJECT:
            sending.end(w, r, applied=True)
        else:
            conditioned(w, r)

    return [(sending, "conditioned", trusting)]


def memory_not_judged() -> Patches:
    return [(sending, "forget_unless_ours", lambda w, r: None)]


def one_nonce_for_all() -> Patches:
    return [(sending, "new_nonce", lambda w: 1)]


def stops_always_clean() -> Patches:
    return [(process, "stops_clean", lambda w: True)]


def kernel_delivers_later() -> Patches:
    def cut(w: World, f: Flight, settle: int) -> None:
        if f.way is Way.UNDER_WAY and f.lands_by < 0:
            f.lands_by = w.now + settle + 1

    return [(upstream, "cut", cut)]


def assembly_not_waited_for() -> Patches:
    return [(process, "patience", lambda w, key: w.size.settle_ticks)]


def completes_settle_each_other() -> Patches:
    unclear = uploads.completes_unclear

    def settling(w: World, r: Request, verdict: Verdict) -> None:
        if verdict is Verdict.OURS:
            for f in w.flights():
                if f.op is Op.COMPLETE and f.nonce == r.nonce:
                    sending.nonce_seen(w, f)
        unclear(w, r, verdict)

    return [(uploads, "completes_unclear", settling)]


def finished_at_the_first_success() -> Patches:
    return [(uploads, "may_land", lambda w, upload: False)]


def completes_take_the_floor() -> Patches:
    def newest(w: World, upload: Upload) -> int:
        return w.gates[upload.key].floor

    return [(uploads, "token_of", newest)]


def doubt_told_as_not_applied() -> Patches:
    end = sending.end

    def certain(w: World, r: Request, *, applied: bool = False, again: bool = False, unknown: bool = False) -> None:
        end(w, r, applied=applied, again=again)

    return [(sending, "end", certain)]


def other_keys_not_waited_for() -> Patches:
    return [(admission, "contested", lambda w, r: False), (admission, "unsettled_of_another", lambda w, r: False)]


def claims_open_the_object() -> Patches:
    return [(admission, "contested", lambda w, r: admission.unsettled_of_another(w, r))]


def moves_after_a_crash() -> Patches:
    return [(admission, "moves_too_early", lambda w, r: False)]


# --- leases, completions, the bucket's record


def tokens_drawn_by_anybody() -> Patches:
    admit = Gate.admit

    def admitted(self: Gate, token: int) -> Admission:
        return admit(self, token, issued=True)  # type: ignore[arg-type]

    return [(Gate, "admit", admitted)]


def floors_token_granted() -> Patches:
    return [(store_rules, "next_token", lambda floor, generation: max(floor, 1))]


def gate_left_open() -> Patches:
    return [
        (leases, "close_gate", lambda w, r: w.gates[r.key].refuse_overtaken(Token(r.token))),
        (Gate, "open", lambda self: None),
    ]


def completed_at_once() -> Patches:
    return [(leases, "is_quiet", lambda w, r: True)]


def opened_in_doubt() -> Patches:
    in_doubt = leases.finish_in_doubt

    def opening(w: World, r: Request) -> None:
        in_doubt(w, r)
        w.gates[r.key].open()
        w.requests.remove(r)

    return [(leases, "finish_in_doubt", opening)]


def completed_unsealed() -> Patches:
    completed = store_rules.completed
    return [
        (
            store_rules,
            "completed",
            lambda fence, token: replace(completed(fence, token), sealed_token=fence.sealed_token),
        )
    ]


def leased_again() -> Patches:
    granted = store_rules.granted
    return [(store_rules, "granted", lambda fence, *more: granted(replace(fence, completed_token=0), *more))]


def served_by_a_new_database() -> Patches:
    return [(admission, "kept_out", lambda w: False)]


def rebuilt_at_once() -> Patches:
    return [(process, "rebuild_patience", lambda w: 0)]


def rebuilt_by_the_shorter_time_out() -> Patches:
    return [(process, "rebuild_patience", lambda w: w.size.settle_ticks)]


def objects_not_asked() -> Patches:
    return [(process, "found", lambda w, obj, key, token: None)]


SWITCHES = [
    Switch("R1", "the floor is not looked at", CORE, floor_not_looked_at, world(PUT)),
    Switch("R1", "the floor is raised in memory alone", CORE, floor_in_memory, world(PUT, crashes=1)),
    Switch("R1", "a floor follows the disk's last answer", CORE, floors_fall, world(PUT, writes=2, grants=0)),
    Switch("R2", "the tail is not withheld", SERVICE, tail_not_withheld, world(STREAM)),
    Switch("R3", "the gate is not asked at the commit point", CORE, not_asked_at_the_commit_point, world(STREAM)),
    Switch("R3", "a hand-over waits for nobody", CORE, nobody_waited_for, world(PUT)),
    Switch("R3", "a grant is answered before lower sends settle", SERVICE, granted_before_the_hand_over, world(PUT)),
    Switch("R3", "a seal is forgotten", CORE, seals_forgotten, world(PUT, grants=0, seals=1)),
    Switch("R4", "sends carry no condition", SERVICE, unconditional,
           world(PUT, writes=2, grants=0, honoured=True, faults=1, bounded=False)),
    Switch("R4", "a resend is not admitted anew", SERVICE, resends_pass_by_the_gate,
           world(PUT, writes=2, honoured=True, faults=1)),
    Switch("R4", "a DELETE is answered from memory", SERVICE, deletes_answered_from_memory,
           world(PUT, DELETE, writes=3, grants=0, faults=1)),
    Switch("R4", "attempts share a nonce", SERVICE, one_nonce_for_all, world(PUT, writes=2, faults=1, grants=0)),
    Switch("R4", "a head is judged without its token", CORE, head_judged_without_tokens,
           world(PUT, writes=2, grants=0, honoured=True, losses=1)),
    Switch("R4", "what is remembered is not judged", SERVICE, memory_not_judged,
           world(PUT, DELETE, writes=3, grants=0, honoured=True, losses=1)),
    Switch("R5", "a lost answer settles", CORE, lost_answers_settle, world(PUT, faults=1)),
    Switch("R5", "a 500 is taken for a refusal", CORE, server_errors_settle, world(PUT, faults=1)),
    Switch("R5", "a newer write settles what is in doubt", CORE, newer_write_settles, world(PUT, writes=2, faults=1)),
    Switch("R5", "any look settles", CORE, any_look_settles, world(PUT, faults=1)),
    Switch("R5", "a crash is forgotten", CORE, starts_taken_for_clean, world(PUT, crashes=1)),
    Switch("R5", "the completed floor is written with the raise", CORE, floor_for_completed_floor,
           world(PUT, grants=2, crashes=1)),
    Switch("R5", "a stop with a send in doubt is clean", SERVICE, stops_always_clean, world(PUT, faults=1, stops=1)),
    Switch("R5", "the kernel delivers after the settle time-out", SERVICE, kernel_delivers_later,
           world(PUT, crashes=1)),
    Switch("R5", "after a crash copies are waited for like other writes", SERVICE, assembly_not_waited_for,
           world(COPY, crashes=1)),
    Switch("R5", "a lost answer is told as NotApplied", SERVICE, doubt_told_as_not_applied, world(PUT, faults=1)),
    Switch("R6", "a Complete takes the floor's token", SERVICE, completes_take_the_floor, world(CREATE)),
    Switch("R6", "one Complete's nonce settles another", SERVICE, completes_settle_each_other,
           world(CREATE, faults=2)),
    Switch("R6", "an upload is recorded as completed at its first success", SERVICE, finished_at_the_first_success,
           world(CREATE, crashes=1)),
    Switch("R9", "sends of other keys are not waited for", SERVICE, other_keys_not_waited_for,
           world(PUT, writes=2, tokens=(1,), keys=2, grants=0, faults=1)),
    Switch("R9", "a claim leaves the object open to others", SERVICE, claims_open_the_object,
           world(PUT, writes=2, tokens=(0, 1), keys=2, grants=0, rekey=False)),
    Switch("R9", "an object changes hands at once after a crash", SERVICE, moves_after_a_crash,
           world(PUT, writes=2, tokens=(0, 1), keys=2, rekey=False, crashes=1)),
    Switch("R11", "writes without a token pass a key that is fenced", CORE, tokenless_always_pass,
           world(PUT, tokens=(0, 1))),
    Switch("R3", "a completion leaves the gate open", CORE, gate_left_open,
           world(STREAM, grants=0, finishes=1, tokens=(1,))),
    Switch("R3", "a completion waits for nothing that has been sent", SERVICE, completed_at_once,
           world(PUT, grants=0, finishes=1, tokens=(1,))),
    Switch("R3", "a completion does not seal", CORE, completed_unsealed, world(PUT, grants=0, finishes=1, tokens=(1,))),
    Switch("R3", "a completion in doubt opens the gate", SERVICE, opened_in_doubt,
           world(PUT, grants=0, finishes=1, faults=1, tokens=(1,))),
    Switch("R3", "a completed job is leased", CORE, leased_again, world(PUT, writes=0, grants=0, finishes=1, leases=1)),
    Switch("R10", "a token that no lease has issued raises the floor", CORE, tokens_drawn_by_anybody,
           world(PUT, grants=0, leases=1)),
    Switch("R10", "a lease is granted the floor's own token", CORE, floors_token_granted,
           world(PUT, writes=0, grants=0, leases=2)),
    Switch("G0", "a new database serves before it has rebuilt", SERVICE, served_by_a_new_database,
           world(PUT, writes=2, grants=0, losses=1, recorded=True)),
    Switch("G0", "a rebuild waits for nothing", SERVICE, rebuilt_at_once,
           world(PUT, writes=2, grants=0, losses=1, recorded=True)),
    Switch("G0", "a rebuild waits the shorter time-out", SERVICE, rebuilt_by_the_shorter_time_out,
           world(CREATE, PUT, writes=2, grants=0, losses=1, recorded=True)),
    Switch("G0", "a rebuild looks at no object", SERVICE, objects_not_asked,
           world(PUT, writes=2, grants=0, losses=1, recorded=True)),
    *OF_QUEUES,
]  # fmt: skip
NOT_HERE = {
    "R7": "a batch passes the gates of its objects one by one, as single deletes do, and a copy's source leaves its "
    "fence behind before anything is decided: `tests/service/test_batches.py`, `test_copies.py`, "
    "`tests/simulation/test_rules_off.py`",
    "R8": "is a table, not a schedule: `tests/s3/test_operations.py` holds it against botocore's service model",
}
