------------------------------- MODULE Order -------------------------------
(***************************************************************************)
(* The order in which the candidates for one election are elected: the     *)
(* queue of its lock.                                                      *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - clocks, deadlines, guarded transactions and heartbeats:             *)
(*     Election.tla.  A leader ends its term at any time.                  *)
(*   - candidates for many elections: Wakeup.tla                           *)
(*   - two candidates that line up in another order than that in which     *)
(*     they began to wait, a moment before: here, both orders are the same *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Candidates,     \* the sessions that bid
    None,           \* a model value: no candidate
    MaxBids,        \* how often each of them bids
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    holder,         \* the session that holds the election's lock
    queue,          \* the sessions that wait for it
    scope,          \* of the term that runs, or "none"
    pc,             \* what each session does
    bids,           \* how often each session has bid
    line,           \* those that wait, in the order in which they lined up first
    fair            \* was each leader the first in line?

vars == <<holder, queue, scope, pc, bids, line, fair>>

Rule(name) == name \notin Omitted

Symmetry == Permutations(Candidates)

Init ==
    /\ holder = None
    /\ queue = <<>>
    /\ scope = "none"
    /\ pc = [c \in Candidates |-> "idle"]
    /\ bids = [c \in Candidates |-> 0]
    /\ line = <<>>
    /\ fair = TRUE

Goto(c, step) == pc' = [pc EXCEPT ![c] = step]
Without(s, c) == SelectSeq(s, LAMBDA d : d # c)
IsIn(s, c) == \E i \in DOMAIN s : s[i] = c

\* A session is shown as a candidate: le_enter_line() in
\* src/bid/candidate.c.
Stands(c) == pc[c] \in {"stands", "line"}

Release(q) ==
    IF q = <<>> THEN holder' = None /\ queue' = q
    ELSE holder' = Head(q) /\ queue' = Tail(q)

-----------------------------------------------------------------------------
(* Bids.                                                                   *)

\* take_lock_now() in src/bid/campaign.c: every bid first tries the lock.
Try(c) ==
    /\ pc[c] = "idle"
    /\ bids[c] < MaxBids
    /\ bids' = [bids EXCEPT ![c] = @ + 1]
    /\ IF holder = None
       THEN holder' = c /\ Goto(c, "try") /\ line' = Append(line, c)
       ELSE holder' = holder /\ Goto(c, "denied") /\ line' = line
    /\ UNCHANGED <<queue, scope, fair>>

Elected(c) ==
    /\ fair' = (fair /\ c = Head(line))
    /\ line' = Without(line, c)

\* le_begin_term() and le_grant_lease(): a lease gives up the lock with the
\* commit.
BeginSession(c) == scope' = "session" /\ Goto(c, "leads") /\ UNCHANGED <<holder, queue>>
BeginLease(c) == scope' = "lease" /\ Goto(c, "idle") /\ Release(queue)

\* le_clear_record() without waiting, in src/bid/succession.c
TryTurn(c) ==
    /\ pc[c] = "try"
    /\ IF scope = "none"
       THEN /\ BeginSession(c) \/ BeginLease(c)
            /\ Elected(c)
       ELSE /\ Release(queue)
            /\ line' = Without(line, c)
            /\ Goto(c, "denied")
            /\ UNCHANGED <<scope, fair>>
    /\ UNCHANGED bids

\* A bid that is denied waits, or not.
Deny(c) ==
    /\ pc[c] = "denied"
    /\ Goto(c, "idle")
    /\ UNCHANGED <<holder, queue, scope, bids, line, fair>>

\* le_enter_line() in src/bid/candidate.c
Stand(c) ==
    /\ pc[c] = "denied"
    /\ Goto(c, "stands")
    /\ UNCHANGED <<holder, queue, scope, bids, line, fair>>

\* le_acquire_for_xact() in wait_in_line() in src/bid/campaign.c
LineUp(c) ==
    /\ pc[c] = "stands"
    /\ line' = IF IsIn(line, c) THEN line ELSE Append(line, c)
    /\ IF holder = None
       THEN holder' = c /\ queue' = queue
       ELSE holder' = holder /\ queue' = Append(queue, c)
    /\ Goto(c, "line")
    /\ UNCHANGED <<scope, bids, fair>>

\* wait_for_turn() in src/bid/campaign.c: the first in line, which holds the
\* lock, is elected when no lease runs.
Turn(c) ==
    /\ pc[c] = "line"
    /\ holder = c
    /\ scope = "none"
    /\ BeginSession(c) \/ BeginLease(c)
    /\ Elected(c)
    /\ UNCHANGED bids

\* wait_for_obstacle(): while a lease runs, it waits and keeps the lock.  The
\* mutant lines up again.
WaitForLease(c) ==
    /\ ~Rule("the first in line keeps the lock")
    /\ pc[c] = "line"
    /\ holder = c
    /\ scope = "lease"
    /\ Release(queue)
    /\ Goto(c, "stands")
    /\ UNCHANGED <<scope, bids, line, fair>>

\* A wait is canceled, times out, or its session dies.
Leave(c) ==
    /\ Stands(c)
    /\ IF holder = c /\ Rule("a candidate that leaves releases the lock")
       THEN Release(queue)
       ELSE holder' = holder /\ queue' = Without(queue, c)
    /\ line' = Without(line, c)
    /\ Goto(c, "idle")
    /\ UNCHANGED <<scope, bids, fair>>

-----------------------------------------------------------------------------
(* Leaders.                                                                *)

\* end_term() in src/term/term.c
EndSession(c) ==
    /\ pc[c] = "leads"
    /\ scope' = "none"
    /\ Release(queue)
    /\ Goto(c, "idle")
    /\ UNCHANGED <<bids, line, fair>>

\* A lease ends: it is resigned, deposed, or expires.
EndLease ==
    /\ scope = "lease"
    /\ scope' = "none"
    /\ UNCHANGED <<holder, queue, pc, bids, line, fair>>

-----------------------------------------------------------------------------
Next ==
    \/ EndLease
    \/ \E c \in Candidates : Try(c)
    \/ \E c \in Candidates : TryTurn(c)
    \/ \E c \in Candidates : Deny(c)
    \/ \E c \in Candidates : Stand(c)
    \/ \E c \in Candidates : LineUp(c)
    \/ \E c \in Candidates : Turn(c)
    \/ \E c \in Candidates : WaitForLease(c)
    \/ \E c \in Candidates : Leave(c)
    \/ \E c \in Candidates : EndSession(c)

\* No session stops in the middle, and each term ends.
Fairness ==
    /\ WF_vars(EndLease)
    /\ \A c \in Candidates :
        WF_vars(TryTurn(c) \/ Deny(c) \/ LineUp(c) \/ Turn(c) \/ EndSession(c))

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ \A c \in Candidates : IsIn(queue, c) => pc[c] = "line" /\ holder # c
    /\ \A c \in Candidates : pc[c] = "leads" => holder = c
    /\ scope = "session" <=> \E c \in Candidates : pc[c] = "leads"

\* doc/guarantees.md: "Candidates for one election wait in the lock manager's own
\* queue, and the one that has waited longest is elected first.  A bid that does
\* not wait never overtakes a candidate in the queue."
FirstComeFirstElected == fair

\* doc/guarantees.md: "When an election becomes free, whatever ended the term, the
\* next candidate is elected".  Each candidate that waits is elected, unless it
\* leaves.
EachIsElected == \A c \in Candidates : Stands(c) ~> ~Stands(c)

=============================================================================
