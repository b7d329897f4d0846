------------------------------ MODULE Election ------------------------------
(***************************************************************************)
(* One election on one server: the lock and its queue, the registry's      *)
(* record, terms in session scope with a heartbeat, leases, and guarded    *)
(* transactions.                                                           *)
(*                                                                         *)
(* An action stands for what the C function does that is named above it.   *)
(* An action is atomic if the function does that under one lock, or by one *)
(* atomic operation; otherwise it is split.                                *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - crash, restart, promotion and the table le_leases: Lease.tla        *)
(*   - where tokens come from: Token.tla.  Here, a token is the number of  *)
(*     the term.                                                           *)
(*   - successors, and the order in the queue: Order.tla                   *)
(*   - how a candidate is woken: Wakeup.tla                                *)
(*   - transaction scope, which is session scope without a heartbeat here  *)
(*   - the grace period, and eviction from the registry                    *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Backends,       \* the sessions that bid
    Transactions,   \* the transactions that are guarded
    None,           \* a model value: no backend
    Ttl,            \* the ttl of a lease, and the heartbeat of a session
    MaxClock,       \* the bound of the server's monotonic clock
    MaxTerms,       \* the bound of the number of terms
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    now,            \* the server's monotonic clock
    holder,         \* the backend that holds the election's lock
    queue,          \* the backends that wait for this lock, in order
    rec,            \* the registry's record of the election
    last,           \* the token of the last term
    guard,          \* the holder of the guard lock in a mode that excludes itself
    mark,           \* may any transaction be guarded? (has_guards)
    pc,             \* what each backend does
    seen,           \* the record as each backend has read it
    tok,            \* the token of each backend's own term
    beat,           \* a session that extends the deadline of the record
    closer,         \* a session that closes a term whose heartbeat is missing
    tx,             \* the transactions
    promised,       \* until when the last term runs, as was answered
    until           \* for each lease: until when it runs, as was answered

vars == <<now, holder, queue, rec, last, guard, mark, pc, seen, tok, beat,
          closer, tx, promised, until>>

Rule(name) == name \notin Omitted

Tokens == 1 .. MaxTerms

\* The two deadlines that are marks, in src/registry/registry.h
Over == 0
Uncommitted == MaxClock + Ttl + 1

NoTerm == [token |-> 0, scope |-> "none", pid |-> None, deadline |-> Over,
           silent |-> FALSE, told |-> FALSE]
Free == [by |-> None, mode |-> "none"]
NoBeat == [token |-> 0, deadline |-> 0, clock |-> 0]
NoCloser == [step |-> "none", token |-> 0, deadline |-> 0, timer |-> None]
NoTx == [step |-> "none", token |-> 0, pid |-> None, ran |-> FALSE]

\* le_deadline_runs() in src/registry/registry.h
DeadlineRuns(d) == d # Uncommitted /\ d > now

Symmetry == Permutations(Backends) \cup Permutations(Transactions)

-----------------------------------------------------------------------------
Init ==
    /\ now = 1
    /\ holder = None
    /\ queue = <<>>
    /\ rec = NoTerm
    /\ last = 0
    /\ guard = Free
    /\ mark = FALSE
    /\ pc = [b \in Backends |-> "idle"]
    /\ seen = [b \in Backends |-> NoTerm]
    /\ tok = [b \in Backends |-> 0]
    /\ beat = NoBeat
    /\ closer = NoCloser
    /\ tx = [t \in Transactions |-> NoTx]
    /\ promised = 0
    /\ until = [k \in Tokens |-> 0]

Goto(b, step) == pc' = [pc EXCEPT ![b] = step]

Tick ==
    /\ now < MaxClock
    /\ now' = now + 1
    /\ UNCHANGED <<holder, queue, rec, last, guard, mark, pc, seen, tok, beat,
                   closer, tx, promised, until>>

\* LockRelease() grants the lock to the first in the queue.
ReleaseLock ==
    IF queue = <<>>
    THEN holder' = None /\ queue' = queue
    ELSE holder' = Head(queue) /\ queue' = Tail(queue)

\* The exclusive lock of the entry's partition excludes the sessions that
\* hold it in shared mode: one that extends the deadline, and one that closes
\* the term.
\* The leader's timer closes it in a signal handler, without that lock: see
\* on_timer() in src/term/heartbeat.c.  It excludes only its own session.
PartitionFree == beat = NoBeat /\ (closer = NoCloser \/ closer.timer # None)

InHandler(b) == closer.timer = b

\* The guard lock is free for a mode that excludes itself.
GuardFree == guard = Free
Shared(t) == tx[t].step \notin {"none", "lock"}
NoneGuarded == \A t \in Transactions : ~Shared(t)

-----------------------------------------------------------------------------
(* The candidate.                                                          *)

\* acquire_now(), and wait_in_line() in src/bid/campaign.c.  A bid
\* that does not wait is one that gives up at once.
Bid(b) ==
    /\ pc[b] = "idle"
    /\ last < MaxTerms
    /\ Goto(b, "line")
    /\ IF holder = None
       THEN holder' = b /\ queue' = queue
       ELSE holder' = holder /\ queue' = Append(queue, b)
    /\ seen' = IF Rule("look again with the lock") THEN seen
               ELSE [seen EXCEPT ![b] = rec]
    /\ UNCHANGED <<now, rec, last, guard, mark, tok, beat, closer, tx,
                   promised, until>>

\* look_with_lock() in src/bid/succession.c, and le_decide() in
\* src/bid/decision.c.  If a lease runs, the candidate looks again later.
Look(b) ==
    LET r == IF Rule("look again with the lock") THEN rec ELSE seen[b]
    IN
    /\ pc[b] = "line"
    /\ holder = b
    /\ ~(r.scope = "lease" /\ DeadlineRuns(r.deadline))
    /\ seen' = [seen EXCEPT ![b] = r]
    /\ Goto(b, CASE r.token = 0 -> "pass guard"
                 [] r.scope = "session" -> "stale"
                 [] r.scope = "lease" -> "write off")
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, tok, beat,
                   closer, tx, promised, until>>

\* A backend that removes a term names its token.
Removed(r, token) ==
    IF r.token = token \/ ~Rule("an end names its token") THEN NoTerm ELSE r

\* le_end_stale() in src/lease/lease.c
EndStale(b) ==
    /\ pc[b] = "stale"
    /\ PartitionFree
    /\ rec' = Removed(rec, seen[b].token)
    /\ Goto(b, "line")
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, seen, tok, beat,
                   closer, tx, promised, until>>

\* le_write_off() in src/bid/succession.c: the guard lock is acquired in
\* exclusive mode if it is free, else in ShareUpdateExclusiveLock, with which
\* guarded transactions do not conflict.
WriteOff(b) ==
    /\ pc[b] = "write off"
    /\ GuardFree
    /\ IF Rule("guard lock passed when the term is over")
       THEN guard' = [by |-> b, mode |-> IF NoneGuarded \/ ~Rule("await guards")
                                         THEN "exclusive" ELSE "update"]
       ELSE NoneGuarded /\ guard' = guard
    /\ Goto(b, "close")
    /\ UNCHANGED <<now, holder, queue, rec, last, mark, seen, tok, beat, closer,
                   tx, promised, until>>

\* void_lease() in src/bid/succession.c, with le_registry_close_lease()
\* in src/registry/leases.c: whether the lease has expired is certain only
\* under the exclusive lock.
AfterClose == IF guard.mode = "update" THEN "await guards" ELSE "remove"
Closed(b) == IF rec.token = seen[b].token THEN [rec EXCEPT !.deadline = Over] ELSE rec

CloseLease(b) ==
    LET exclusive == Rule("close the lease under the exclusive lock")
    IN
    /\ pc[b] = "close"
    /\ exclusive => PartitionFree
    /\ IF rec.token = seen[b].token /\ rec.scope = "lease" /\ DeadlineRuns(rec.deadline)
          /\ Rule("look at the deadline when closing")
       THEN Goto(b, "line") /\ guard' = Free /\ rec' = rec
       ELSE IF exclusive
            THEN Goto(b, AfterClose) /\ guard' = Free /\ rec' = Closed(b)
            ELSE Goto(b, "store") /\ UNCHANGED <<guard, rec>>
    /\ UNCHANGED <<now, holder, queue, last, mark, seen, tok, beat, closer, tx,
                   promised, until>>

\* The mutant: the mark is stored without the exclusive lock.
Store(b) ==
    /\ pc[b] = "store"
    /\ Goto(b, AfterClose) /\ guard' = Free /\ rec' = Closed(b)
    /\ UNCHANGED <<now, holder, queue, last, mark, seen, tok, beat, closer, tx,
                   promised, until>>

\* take_guard() in src/bid/succession.c, in exclusive mode
AwaitGuards(b) ==
    /\ pc[b] = "await guards"
    /\ GuardFree
    /\ NoneGuarded \/ ~Rule("await guards")
    /\ Goto(b, "remove")
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, seen, tok, beat,
                   closer, tx, promised, until>>

\* clear_lease() in src/bid/succession.c, with le_registry_end_term()
RemoveLease(b) ==
    /\ pc[b] = "remove"
    /\ PartitionFree
    /\ rec' = Removed(rec, seen[b].token)
    /\ Goto(b, "elected")
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, seen, tok, beat,
                   closer, tx, promised, until>>

\* pass_guard() in src/bid/succession.c: no term is recorded.
PassGuard(b) ==
    /\ pc[b] = "pass guard"
    /\ \/ ~mark
       \/ GuardFree /\ NoneGuarded
       \/ ~Rule("await guards")
    /\ Goto(b, "elected")
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, seen, tok, beat,
                   closer, tx, promised, until>>

\* le_begin_term() in src/term/term.c
BeginSession(b) ==
    /\ pc[b] = "elected"
    /\ last < MaxTerms
    /\ PartitionFree
    /\ last' = last + 1
    /\ rec' = [token |-> last + 1, scope |-> "session", pid |-> b,
               deadline |-> now + Ttl, silent |-> FALSE, told |-> FALSE]
    /\ promised' = now + Ttl
    /\ tok' = [tok EXCEPT ![b] = last + 1]
    /\ seen' = [seen EXCEPT ![b] = NoTerm]
    /\ Goto(b, "leads")
    /\ UNCHANGED <<now, holder, queue, guard, mark, beat, closer, tx, until>>

\* le_grant_lease() in src/lease/grant.c
GrantLease(b) ==
    /\ pc[b] = "elected"
    /\ last < MaxTerms
    /\ PartitionFree
    /\ last' = last + 1
    /\ rec' = [token |-> last + 1, scope |-> "lease", pid |-> None,
               deadline |-> Uncommitted, silent |-> FALSE, told |-> FALSE]
    /\ promised' = 0
    /\ tok' = [tok EXCEPT ![b] = last + 1]
    /\ seen' = [seen EXCEPT ![b] = NoTerm]
    /\ Goto(b, "granted")
    /\ UNCHANGED <<now, holder, queue, guard, mark, beat, closer, tx, until>>

\* begin_grant(), or le_give_up_grant() after a rollback, in
\* src/lease/grant.c
EndOfGrant(b) ==
    /\ pc[b] = "granted"
    /\ PartitionFree
    /\ \/ /\ rec' = [rec EXCEPT !.deadline = now + Ttl]
          /\ promised' = now + Ttl
          /\ until' = [until EXCEPT ![tok[b]] = now + Ttl]
       \/ /\ rec' = [rec EXCEPT !.deadline = Over]
          /\ UNCHANGED <<promised, until>>
    /\ Goto(b, "release")
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, seen, tok, beat,
                   closer, tx>>

\* The lock of a transaction, or that of a session whose term was removed from
\* the record, is released.
Release(b) ==
    /\ pc[b] = "release"
    /\ ReleaseLock
    /\ tok' = [tok EXCEPT ![b] = 0]
    /\ Goto(b, "idle")
    /\ UNCHANGED <<now, rec, last, guard, mark, seen, beat, closer, tx, promised,
                   until>>

\* A bid that does not wait is denied, or a wait is canceled.
GiveUp(b) ==
    /\ pc[b] \in {"line", "stale", "write off", "close", "await guards", "remove",
                 "pass guard", "elected"}
    /\ IF holder = b
       THEN ReleaseLock
       ELSE holder' = holder /\ queue' = SelectSeq(queue, LAMBDA c : c # b)
    /\ seen' = [seen EXCEPT ![b] = NoTerm]
    /\ guard' = IF guard.by = b THEN Free ELSE guard
    /\ Goto(b, "idle")
    /\ UNCHANGED <<now, rec, last, mark, tok, beat, closer, tx, promised,
                   until>>

-----------------------------------------------------------------------------
(* The leader.                                                             *)

\* end_term() in src/term/term.c.  A term in session scope ends: by
\* le_resign(), by the end of the session, or because the session is
\* terminated for its silence.  The record is removed before the lock is
\* released.
EndTerm(b) ==
    /\ pc[b] = "leads"
    /\ ~InHandler(b)
    /\ Rule("record removed before the lock is released")
    /\ PartitionFree
    /\ rec' = Removed(rec, tok[b])
    /\ Goto(b, "release")
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, seen, tok, beat,
                   closer, tx, promised, until>>

\* The mutant: the lock is released first.
EndTermLate(b) ==
    /\ pc[b] = "leads"
    /\ ~InHandler(b)
    /\ ~Rule("record removed before the lock is released")
    /\ ReleaseLock
    /\ Goto(b, "late")
    /\ UNCHANGED <<now, rec, last, guard, mark, seen, tok, beat, closer, tx,
                   promised, until>>

\* pg_advisory_unlock_all() releases the lock without the extension's
\* knowledge.
LoseLock(b) ==
    /\ pc[b] = "leads"
    /\ ~InHandler(b)
    /\ ReleaseLock
    /\ Goto(b, "lost")
    /\ UNCHANGED <<now, rec, last, guard, mark, seen, tok, beat, closer, tx,
                   promised, until>>

\* le_verify_terms() in src/term/term.c ends a term that has lost its lock.
EndLost(b) ==
    /\ pc[b] \in {"lost", "late"}
    /\ ~InHandler(b)
    /\ PartitionFree
    /\ rec' = Removed(rec, tok[b])
    /\ tok' = [tok EXCEPT ![b] = 0]
    /\ Goto(b, "idle")
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, seen, beat, closer, tx,
                   promised, until>>

\* le_lease_write_end() in src/lease/lease.c: a lease is resigned or deposed.
\* The guard lock is held in ShareUpdateExclusiveLock, until that is recorded.
EndLease ==
    /\ rec.scope = "lease"
    /\ GuardFree
    /\ PartitionFree
    /\ DeadlineRuns(rec.deadline)
    /\ rec' = [rec EXCEPT !.deadline = Over]
    /\ promised' = 0
    /\ until' = [until EXCEPT ![rec.token] = 0]
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, pc, seen, tok, beat,
                   closer, tx>>

\* le_put_off_deadline() in src/registry/expiry.c reads the deadline and
\* the clock, for a heartbeat or a renewal, under the shared lock.  If the
\* deadline has passed, the answer is false.
PutOff ==
    /\ beat = NoBeat
    /\ rec.scope \in {"session", "lease"}
    /\ DeadlineRuns(rec.deadline)
    /\ beat' = [token |-> rec.token, deadline |-> rec.deadline, clock |-> now]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   closer, tx, promised, until>>

\* Then it stores the new deadline by compare-and-swap, and answers true.  If
\* the deadline was changed, it looks again.
Swap ==
    /\ beat # NoBeat
    /\ IF rec.token = beat.token
          /\ (rec.deadline = beat.deadline \/ ~Rule("heartbeat by compare-and-swap"))
       THEN /\ rec' = [rec EXCEPT !.deadline = beat.clock + Ttl]
            /\ promised' = beat.clock + Ttl
            /\ until' = IF rec.scope # "lease" THEN until
                        ELSE [until EXCEPT ![rec.token] = beat.clock + Ttl]
       ELSE UNCHANGED <<rec, promised, until>>
    /\ beat' = NoBeat
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, pc, seen, tok, closer,
                   tx>>

\* le_entry_close_silent() in src/registry/expiry.c: any session, under the shared
\* lock, finds that the deadline has passed.
Find ==
    /\ closer = NoCloser
    /\ rec.scope = "session"
    /\ ~rec.silent
    /\ rec.deadline <= now
    /\ closer' = [step |-> IF Rule("deadline lowered before the term is silent")
                           THEN "lower" ELSE "mark",
                  token |-> rec.token, deadline |-> rec.deadline, timer |-> None]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, tx, promised, until>>

\* le_entry_is_silent() in the signal handler of the leader, which may have lost
\* the lock without the extension's knowledge
FindByTimer(b) ==
    /\ closer = NoCloser
    /\ pc[b] \in {"leads", "lost", "late"}
    /\ rec.token = tok[b]
    /\ rec.scope = "session"
    /\ ~rec.silent
    /\ rec.deadline <= now
    /\ rec.deadline = promised      \* it has not found that before
    /\ closer' = [step |-> "lower", token |-> rec.token, deadline |-> rec.deadline,
                  timer |-> b]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, tx, promised, until>>

\* le_has_expired() in src/registry/expiry.c: a renewal, a guard or a view finds,
\* under the shared lock, that a lease has expired, and says so.  It marks the
\* deadline by compare-and-swap, here as one unit less.
TellExpired ==
    /\ rec.scope = "lease"
    /\ rec.deadline \notin {Over, Uncommitted}
    /\ rec.deadline <= now
    /\ ~rec.told
    /\ rec' = [rec EXCEPT !.told = TRUE,
                          !.deadline = IF Rule("deadline marked before the answer")
                                       THEN @ - 1 ELSE @]
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, pc, seen, tok,
                   beat, closer, tx, promised, until>>

\* le_has_expired() in src/registry/expiry.c marks the deadline by
\* compare-and-swap, here as one unit less.
Lower ==
    /\ closer.step = "lower"
    /\ IF (rec.token = closer.token \/ closer.timer # None)
          /\ rec.deadline = closer.deadline
       THEN /\ rec' = [rec EXCEPT !.deadline = @ - 1]
            /\ closer' = [closer EXCEPT !.step = "mark"]
       ELSE closer' = NoCloser /\ rec' = rec
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, pc, seen, tok, beat, tx,
                   promised, until>>

\* Only after that is the term marked as silent.  The signal handler marks
\* nothing, since its term may have been replaced.
MarkSilent ==
    /\ closer.step = "mark"
    /\ rec' = CASE closer.timer # None /\ Rule("handler marks nothing") -> rec
                [] closer.timer # None \/ rec.token = closer.token ->
                       [rec EXCEPT !.silent = TRUE]
                [] OTHER -> rec
    /\ closer' = NoCloser
    /\ UNCHANGED <<now, holder, queue, last, guard, mark, pc, seen, tok, beat, tx,
                   promised, until>>

-----------------------------------------------------------------------------
(* Guarded transactions: src/lead/guard.c.                               *)

\* Does the term run?  This is not what the record says, but what is promised.
Runs(token) ==
    \/ \E b \in Backends : /\ pc[b] = "leads" /\ tok[b] = token
                           /\ ~(rec.token = token /\ rec.silent)
    \/ token # 0 /\ until[token] > now

\* le_term_is_led(): does the record say that the term runs?  A session that
\* finds that a deadline has passed closes the term first, by the actions above.
RecordIsLed(token) ==
    /\ rec.token = token
    /\ \/ rec.scope = "session" /\ ~rec.silent
       \/ rec.scope = "lease" /\ DeadlineRuns(rec.deadline)

Decidable == ~(rec.scope = "session" /\ ~rec.silent /\ rec.deadline <= now)

Step(t, step) == tx' = [tx EXCEPT ![t].step = step]

\* le_guard_transaction() finds the term on record, and marks the registry.
Guard(t) ==
    /\ tx[t].step = "none"
    /\ rec.token # 0
    /\ Decidable
    /\ RecordIsLed(rec.token)
    /\ tx' = [tx EXCEPT ![t] = [step |-> "lock", token |-> rec.token,
                                pid |-> rec.pid, ran |-> FALSE]]
    /\ mark' = IF Rule("mark set before the guard lock") THEN TRUE ELSE mark
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, pc, seen, tok, beat,
                   closer, promised, until>>

\* le_acquire_guard() in RowShareLock
LockGuard(t) ==
    /\ tx[t].step = "lock"
    /\ guard.mode # "exclusive"
    /\ Step(t, CASE ~Rule("check guard after the lock") -> "guarded"
                 [] ~Rule("lock read before the record") -> "read"
                 [] OTHER -> "look")
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

\* term_runs() looks up the holder of the election's lock: le_probe_holder() in
\* src/lock/lock.c.
LookAtLock(t) ==
    /\ tx[t].step \in {"look", "look again"}
    /\ tx' = [tx EXCEPT ![t] =
                [step |-> IF tx[t].step = "look" THEN "read" ELSE "read again",
                 token |-> tx[t].token,
                 pid |-> holder,
                 ran |-> Runs(tx[t].token)]]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

\* Then it reads the record.  A lease needs no lock.
Read(t) ==
    LET k == tx[t].token
        first == tx[t].step = "read"
        led == /\ RecordIsLed(k)
               /\ \/ rec.scope = "lease"
                  \/ tx[t].pid = rec.pid
                  \/ ~Rule("lock read before the record")
                  \/ ~Rule("guard asks for the lock")
        asks == rec.scope = "session" /\ ~Rule("lock read before the record")
    IN
    /\ tx[t].step \in {"read", "read again"}
    /\ Decidable
    /\ tx' = [tx EXCEPT ![t] =
                IF ~led THEN NoTx
                ELSE [step |-> CASE asks /\ first -> "ask"
                                 [] asks -> "ask again"
                                 [] first -> "guarded"
                                 [] OTHER -> "checked",
                      token |-> k,
                      pid |-> rec.pid,
                      ran |-> Runs(k) \/ (tx[t].ran /\ Rule("lock read before the record"))]]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

\* The mutant: it looks up the lock after it has read the record.
AskForLock(t) ==
    /\ tx[t].step \in {"ask", "ask again"}
    /\ tx' = [tx EXCEPT ![t] =
                IF holder # tx[t].pid THEN NoTx
                ELSE [tx[t] EXCEPT !.step = IF @ = "ask" THEN "guarded" ELSE "checked"]]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

\* le_guards_before_commit() checks the term once more.
CheckAgain(t) ==
    /\ tx[t].step = "guarded"
    /\ IF Rule("check again before commit")
       THEN Step(t, IF Rule("lock read before the record") THEN "look again" ELSE "read again")
       ELSE tx' = [tx EXCEPT ![t].step = "checked", ![t].ran = Runs(tx[t].token)]
    /\ mark' = TRUE
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, pc, seen, tok, beat,
                   closer, promised, until>>

\* The transaction commits.  A prepared transaction does so much later.
Commit(t) ==
    /\ tx[t].step = "checked"
    /\ Step(t, "committed")
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

\* The transaction ends after its commit, or by a rollback, and its locks are
\* released.
EndTransaction(t) ==
    /\ tx[t].step \in {"guarded", "committed"}
    /\ tx' = [tx EXCEPT ![t] = NoTx]
    /\ UNCHANGED <<now, holder, queue, rec, last, guard, mark, pc, seen, tok,
                   beat, closer, promised, until>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ PutOff
    \/ Swap
    \/ Find
    \/ Lower
    \/ MarkSilent
    \/ EndLease
    \/ TellExpired
    \/ \E b \in Backends : FindByTimer(b)
    \/ \E b \in Backends : Bid(b)
    \/ \E b \in Backends : Look(b)
    \/ \E b \in Backends : EndStale(b)
    \/ \E b \in Backends : WriteOff(b)
    \/ \E b \in Backends : CloseLease(b)
    \/ \E b \in Backends : Store(b)
    \/ \E b \in Backends : AwaitGuards(b)
    \/ \E b \in Backends : RemoveLease(b)
    \/ \E b \in Backends : PassGuard(b)
    \/ \E b \in Backends : BeginSession(b)
    \/ \E b \in Backends : GrantLease(b)
    \/ \E b \in Backends : EndOfGrant(b)
    \/ \E b \in Backends : Release(b)
    \/ \E b \in Backends : GiveUp(b)
    \/ \E b \in Backends : EndTerm(b)
    \/ \E b \in Backends : EndTermLate(b)
    \/ \E b \in Backends : LoseLock(b)
    \/ \E b \in Backends : EndLost(b)
    \/ \E t \in Transactions : Guard(t)
    \/ \E t \in Transactions : LockGuard(t)
    \/ \E t \in Transactions : LookAtLock(t)
    \/ \E t \in Transactions : Read(t)
    \/ \E t \in Transactions : AskForLock(t)
    \/ \E t \in Transactions : CheckAgain(t)
    \/ \E t \in Transactions : Commit(t)
    \/ \E t \in Transactions : EndTransaction(t)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ now \in 1 .. MaxClock
    /\ holder \in Backends \cup {None}
    /\ last \in 0 .. MaxTerms
    /\ rec.token \in 0 .. last
    /\ \A b \in Backends : b # holder \/ \A i \in DOMAIN queue : queue[i] # b

\* doc/guarantees.md: "At any moment, an election in a database has at most one
\* leader, whatever the scopes of its candidates."
AtMostOneLeader == Cardinality({k \in Tokens : Runs(k)}) <= 1

\* doc/guarantees.md: "In session and transaction scope, the leader holds an
\* exclusive lock of PostgreSQL's lock manager."  The record is of its term.
LeaderHoldsLock ==
    \A b \in Backends : pc[b] = "leads" => holder = b /\ rec.token = tok[b]

\* doc/guarantees.md: "they cannot show a leader that does not hold the
\* election's lock".  A term on record has its lock, unless the application
\* released it without the extension's knowledge.
RecordHasLock ==
    rec.scope = "session" =>
        holder = rec.pid \/ \E b \in Backends : pc[b] = "lost" /\ tok[b] = rec.token

\* doc/guarantees.md: "What a guarded transaction writes is written within its
\* term.  No new term begins before the transaction has ended".
GuardedInTerm ==
    \A t \in Transactions :
        tx[t].step \in {"guarded", "look again", "read again", "ask again", "checked",
                       "committed"}
            => tx[t].token = last

\* doc/guarantees.md: "and the transaction does not commit if its own term is
\* over".  The term runs at the last check.  If it ends between this check and
\* the commit, the guard lock delays the next term.
CommitInTerm == \A t \in Transactions : tx[t].step = "committed" => tx[t].ran

\* doc/guarantees.md: "If le_heartbeat returns true, the term was extended.  A
\* late heartbeat never revives the term."
HeartbeatOrEnd == rec.scope = "session" /\ rec.silent => promised <= now

\* doc/guarantees.md: "After the lease has expired, its token can no longer renew
\* it".  And a lease that was renewed is not closed before its new deadline.
RenewalOrEnd ==
    /\ rec.scope = "lease" /\ rec.deadline = Over => promised <= now
    /\ \A k \in Tokens : until[k] > now => rec.token = k

\* The same quotation.  A lease of which any session was told that it has expired
\* does not run again.
ToldStays == rec.told => ~(rec.scope = "lease" /\ DeadlineRuns(rec.deadline))

=============================================================================
