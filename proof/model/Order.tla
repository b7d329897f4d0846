------------------------------- MODULE Order -------------------------------
(***************************************************************************)
(* The order in which the candidates for one election are elected: the     *)
(* queue of its lock, and the successor that a resigning leader names.     *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - clocks, deadlines, guarded transactions and heartbeats:             *)
(*     Election.tla.  A leader ends its term at any time.                  *)
(*   - candidates for many elections: Wakeup.tla                           *)
(*   - the limit of one second in bring_to_front() in                      *)
(*     src/campaign/handover.c: a candidate that is about to line up does  *)
(*     so before.                                                          *)
(*   - a candidate that has given way and takes long to line up again: see *)
(*     LinedUp                                                             *)
(*   - a successor that leaves, and bids again before the next term has    *)
(*     begun: the record has its process, so it keeps its precedence       *)
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
    successor,      \* the successor that the registry's record names
    gave_way,       \* the candidates that have given way
    pc,             \* what each session does
    bids,           \* how often each session has bid
    line,           \* those that wait, in the order in which they lined up first
    named,          \* the successor that the last leader has named
    fair            \* was each leader the first in line, or named?

vars == <<holder, queue, scope, successor, gave_way, pc, bids, line, named, fair>>

Rule(name) == name \notin Omitted

Symmetry == Permutations(Candidates)

Init ==
    /\ holder = None
    /\ queue = <<>>
    /\ scope = "none"
    /\ successor = None
    /\ gave_way = {}
    /\ pc = [c \in Candidates |-> "idle"]
    /\ bids = [c \in Candidates |-> 0]
    /\ line = <<>>
    /\ named = None
    /\ fair = TRUE

Goto(c, step) == pc' = [pc EXCEPT ![c] = step]
Without(s, c) == SelectSeq(s, LAMBDA d : d # c)
IsIn(s, c) == \E i \in DOMAIN s : s[i] = c

\* A session is shown as a candidate: le_stand_in_line() in
\* src/campaign/candidate.c.
Stands(c) == pc[c] \in {"stands", "line", "moved", "bring back", "turn"}

Release(q) ==
    IF q = <<>> THEN holder' = None /\ queue' = q
    ELSE holder' = Head(q) /\ queue' = Tail(q)

\* LockQueueMoveToFrontCompat() in le_move_to_front() in
\* src/term/election_lock.c
Front(q, c) == <<c>> \o Without(q, c)

-----------------------------------------------------------------------------
(* Bids.                                                                   *)

\* A candidate that has given way lines up again within microseconds.  Until the
\* next term has begun, the named successor protects its place.  After that, the
\* model assumes that it has lined up before another session bids or lines up.
LinedUp == successor # None \/ \A c \in gave_way : pc[c] # "stands"

\* take_lock_now() in src/campaign/campaign.c: every bid first tries the lock.
Try(c) ==
    /\ pc[c] = "idle"
    /\ LinedUp
    /\ successor # c
    /\ bids[c] < MaxBids
    /\ bids' = [bids EXCEPT ![c] = @ + 1]
    /\ IF holder = None
       THEN holder' = c /\ Goto(c, "try") /\ line' = Append(line, c)
       ELSE holder' = holder /\ Goto(c, "denied") /\ line' = line
    /\ UNCHANGED <<queue, scope, successor, gave_way, named, fair>>

\* The displaced candidates other than this one, in the order in which they
\* lined up first: list_in_line() in src/campaign/handover.c
Displaced(c) == SelectSeq(line, LAMBDA d : d # c /\ d \in gave_way /\ Stands(d))

\* le_successor_waits() in src/campaign/handover.c: a named successor may not be
\* in the queue yet, nor may a candidate that has given way to it.
SuccessorWaits(c) ==
    /\ successor # None
    /\ \/ successor # c /\ Stands(successor)
       \/ Displaced(c) # <<>> /\ Rule("a bid gives way to a displaced candidate")

Elected(c) ==
    /\ fair' = (fair /\ (c = Head(line) \/ c = named))
    /\ line' = Without(line, c)
    /\ gave_way' = gave_way \ {c}
    /\ named' = None
    /\ successor' = None

\* le_begin_term() and le_grant_lease(): a lease gives up the lock with the
\* commit.
BeginSession(c) == scope' = "session" /\ Goto(c, "leads") /\ UNCHANGED <<holder, queue>>
BeginLease(c) == scope' = "lease" /\ Goto(c, "idle") /\ Release(queue)

\* le_clear_record() without waiting, in src/campaign/succession.c
TryTurn(c) ==
    /\ pc[c] = "try"
    /\ IF scope = "none" /\ ~(SuccessorWaits(c) /\ Rule("a bid gives way to the successor"))
       THEN /\ BeginSession(c) \/ BeginLease(c)
            /\ Elected(c)
       ELSE /\ Release(queue)
            /\ line' = Without(line, c)
            /\ Goto(c, "denied")
            /\ UNCHANGED <<scope, successor, gave_way, named, fair>>
    /\ UNCHANGED bids

\* A bid that is denied waits, or not.
Deny(c) ==
    /\ pc[c] = "denied"
    /\ Goto(c, "idle")
    /\ UNCHANGED <<holder, queue, scope, successor, gave_way, bids, line, named, fair>>

\* le_stand_in_line() in src/campaign/candidate.c
Stand(c) ==
    /\ pc[c] = "denied"
    /\ Goto(c, "stands")
    /\ UNCHANGED <<holder, queue, scope, successor, gave_way, bids, line, named, fair>>

\* le_acquire_for_xact() in wait_in_line() in src/campaign/campaign.c.  One that
\* has given way does so once more.
LineUp(c) ==
    /\ pc[c] = "stands"
    /\ c \in gave_way \/ LinedUp
    /\ line' = IF IsIn(line, c) THEN line ELSE Append(line, c)
    /\ IF holder = None
       THEN holder' = c /\ queue' = queue
       ELSE holder' = holder /\ queue' = Append(queue, c)
    /\ Goto(c, "line")
    /\ UNCHANGED <<scope, successor, gave_way, bids, named, fair>>

\* le_take_turn() in src/campaign/handover.c, when the election is vacant
TakeTurn(c) ==
    LET next == IF successor # None /\ Stands(successor) THEN successor
                ELSE IF Displaced(c) # <<>> /\ Rule("a displaced candidate is next")
                THEN Head(Displaced(c)) ELSE None
    IN
    /\ pc[c] = "line"
    /\ holder = c
    /\ scope = "none"
    /\ gave_way' = gave_way \ {c}
    /\ IF successor = None
       THEN Goto(c, "turn") /\ UNCHANGED <<queue, successor>>
       ELSE IF successor = c
       THEN Goto(c, "bring back") /\ UNCHANGED <<queue, successor>>
       ELSE IF next = None /\ Rule("a successor that is gone is skipped")
       THEN Goto(c, "turn") /\ successor' = None /\ queue' = queue
       \* bring_to_front() waits for a candidate that is about to line up.
       ELSE /\ IsIn(queue, next)
            /\ queue' = Front(queue, next)
            /\ successor' = next
            /\ Goto(c, "moved")
    /\ UNCHANGED <<holder, scope, bids, line, named, fair>>

\* give_way() in src/campaign/handover.c
GiveWay(c) ==
    /\ pc[c] = "moved"
    /\ gave_way' = gave_way \cup {c}
    /\ Release(queue)
    /\ Goto(c, "stands")
    /\ UNCHANGED <<scope, successor, bids, line, named, fair>>

\* bring_back() in src/campaign/handover.c
BringBack(c) ==
    LET d == Displaced(c)
    IN
    /\ pc[c] = "bring back"
    /\ \A i \in DOMAIN d : IsIn(queue, d[i])
    /\ queue' = IF Rule("a displaced candidate gets back its place")
                THEN d \o SelectSeq(queue, LAMBDA q : ~IsIn(d, q)) ELSE queue
    /\ Goto(c, "turn")
    /\ UNCHANGED <<holder, scope, successor, gave_way, bids, line, named, fair>>

Turn(c) ==
    /\ pc[c] = "turn"
    /\ BeginSession(c) \/ BeginLease(c)
    /\ Elected(c)
    /\ UNCHANGED bids

\* A wait is canceled, times out, or its session dies.
Leave(c) ==
    /\ Stands(c)
    /\ IF holder = c THEN Release(queue) ELSE holder' = holder /\ queue' = Without(queue, c)
    /\ gave_way' = gave_way \ {c}
    /\ line' = Without(line, c)
    /\ Goto(c, "idle")
    /\ UNCHANGED <<scope, successor, bids, named, fair>>

-----------------------------------------------------------------------------
(* Leaders.                                                                *)

\* end_term() in src/term/term.c
EndSession(c) ==
    /\ pc[c] = "leads"
    /\ scope' = "none"
    /\ Release(queue)
    /\ Goto(c, "idle")
    /\ UNCHANGED <<successor, gave_way, bids, line, named, fair>>

\* le_resign_to() in src/campaign/handover.c: the leader holds the lock.
Prefer(c) ==
    /\ pc[c] = "leads"
    /\ \E s \in Candidates :
        /\ IsIn(queue, s)
        /\ queue' = Front(queue, s)
        /\ named' = s
    /\ Goto(c, "resigns")
    /\ UNCHANGED <<holder, scope, successor, gave_way, bids, line, fair>>

Resign(c) ==
    /\ pc[c] = "resigns"
    /\ scope' = "none"
    /\ Release(queue)
    /\ Goto(c, "idle")
    /\ UNCHANGED <<successor, gave_way, bids, line, named, fair>>

\* A lease ends: it is resigned, deposed, or expires.
EndLease ==
    /\ scope = "lease"
    /\ scope' = "none"
    /\ UNCHANGED <<holder, queue, successor, gave_way, pc, bids, line, named, fair>>

\* le_resign_to(), and act_on_entry() in src/registry/leases.c: a lease is
\* resigned in favor of a successor.
ResignLease ==
    /\ scope = "lease"
    /\ scope' = "none"
    /\ \E s \in Candidates : Stands(s) /\ successor' = s /\ named' = s
    /\ UNCHANGED <<holder, queue, gave_way, pc, bids, line, fair>>

-----------------------------------------------------------------------------
Next ==
    \/ EndLease
    \/ ResignLease
    \/ \E c \in Candidates : Try(c)
    \/ \E c \in Candidates : TryTurn(c)
    \/ \E c \in Candidates : Deny(c)
    \/ \E c \in Candidates : Stand(c)
    \/ \E c \in Candidates : LineUp(c)
    \/ \E c \in Candidates : TakeTurn(c)
    \/ \E c \in Candidates : GiveWay(c)
    \/ \E c \in Candidates : BringBack(c)
    \/ \E c \in Candidates : Turn(c)
    \/ \E c \in Candidates : Leave(c)
    \/ \E c \in Candidates : EndSession(c)
    \/ \E c \in Candidates : Prefer(c)
    \/ \E c \in Candidates : Resign(c)

\* No session stops in the middle, and each term ends.
Fairness ==
    /\ WF_vars(EndLease)
    /\ \A c \in Candidates :
        WF_vars(\/ TryTurn(c) \/ Deny(c) \/ LineUp(c) \/ TakeTurn(c) \/ GiveWay(c)
                \/ BringBack(c) \/ Turn(c) \/ EndSession(c) \/ Resign(c))

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ \A c \in Candidates : IsIn(queue, c) => pc[c] = "line" /\ holder # c
    /\ \A c \in Candidates : pc[c] = "leads" => holder = c
    /\ scope = "session" <=> \E c \in Candidates : pc[c] \in {"leads", "resigns"}

\* doc/guarantees.md: "Candidates for one election wait in the lock manager's own
\* queue, and the one that has waited longest is elected first.  A bid that does
\* not wait never overtakes a candidate in the queue.", with the exception: "A
\* successor that a resigning leader names goes first."
FirstComeFirstElected == fair

\* doc/guarantees.md: "When an election becomes free, whatever ended the term, the
\* next candidate is elected".  Each candidate that waits is elected, unless it
\* leaves.
EachIsElected == \A c \in Candidates : Stands(c) ~> ~Stands(c)

=============================================================================
