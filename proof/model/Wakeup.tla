------------------------------- MODULE Wakeup -------------------------------
(***************************************************************************)
(* How a candidate for many elections is woken: the mark in the registry's *)
(* entries, the number of releases beside it, and the condition variable.  *)
(*                                                                         *)
(* The candidate has no timer here.  In the C code, it also looks again    *)
(* after some time (look_again() in src/bid/campaign_many.c), so a         *)
(* lost wake-up would only take that long.  The model shows that none is   *)
(* lost where none may be.                                                 *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - leases, and locks that the application releases without the         *)
(*     extension's knowledge, for which the timer is needed                *)
(*   - locks that the server releases with a transaction, just after the   *)
(*     candidate was woken: by its timer, it tries again in a moment       *)
(*   - bids that acquire the lock in vain (le_release_unused() in          *)
(*     src/lock/lock.c), which wake no candidate.  The candidate           *)
(*     that was refused meanwhile looks again by its timer.  Here, a       *)
(*     candidate that gets the lock is elected.                            *)
(*   - a candidate that leaves                                             *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Elections,
    Leaders,        \* the sessions that lead at first, one for each election
    Candidates,     \* for all elections
    None,           \* a model value: no session
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    holder,         \* for each election: the session that holds its lock
    marks,          \* for each election: how many candidates for many it has
    many,           \* how many candidates for many there are
    releases,       \* for each election: how often that has been counted
    pc,             \* what each session does
    todo,           \* the elections that a candidate is about to mark, or to look at
    at,             \* the election that it marks, or bids for
    seen,           \* the releases that its last bids knew of
    sleeps,         \* the candidates in the condition variable's list
    settled         \* the candidates that have had their first look

vars == <<holder, marks, many, releases, pc, todo, at, seen, sleeps, settled>>

Rule(name) == name \notin Omitted

\* Each leader has an election of its own.
Led == CHOOSE f \in [Leaders -> Elections] : \A l, m \in Leaders : l # m => f[l] # f[m]

Init ==
    /\ holder = [e \in Elections |->
                    IF \E l \in Leaders : Led[l] = e
                    THEN CHOOSE l \in Leaders : Led[l] = e ELSE None]
    /\ marks = [e \in Elections |-> 0]
    /\ many = 0
    /\ releases = [e \in Elections |-> 0]
    /\ pc = [p \in Leaders \cup Candidates |-> IF p \in Leaders THEN "leads" ELSE "start"]
    /\ todo = [c \in Candidates |-> Elections]
    /\ at = [c \in Candidates |-> None]
    /\ seen = [c \in Candidates |-> [e \in Elections |-> 0]]
    /\ sleeps = {}
    /\ settled = {}

Goto(p, step) == pc' = [pc EXCEPT ![p] = step]

-----------------------------------------------------------------------------
(* The leader.                                                             *)

Early == ~Rule("mark looked for after the release")

\* LockRelease() in le_release_for_session() in src/lock/lock.c
Unlock(l) ==
    /\ pc[l] \in IF Early THEN {"unlocks", "unlocks in vain"} ELSE {"leads"}
    /\ holder' = [holder EXCEPT ![Led[l]] = None]
    /\ Goto(l, CASE pc[l] = "leads" -> "looks"
                 [] pc[l] = "unlocks" -> "counts"
                 [] OTHER -> "done")
    /\ UNCHANGED <<marks, many, releases, todo, at, seen, sleeps, settled>>

\* le_wake_many() in src/registry/wakeup.c looks for any candidate for many,
LookForAny(l) ==
    /\ ~Early
    /\ pc[l] = "looks"
    /\ Goto(l, IF many = 0 THEN "done" ELSE "counts")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, seen, sleeps, settled>>

\* The mutant: it looks for the mark before it unlocks.
LookEarly(l) ==
    /\ Early
    /\ pc[l] = "leads"
    /\ Goto(l, IF marks[Led[l]] = 0 THEN "unlocks in vain" ELSE "unlocks")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, seen, sleeps, settled>>

\* then count_release() at the mark, and counts the release,
Count(l) ==
    /\ pc[l] = "counts"
    /\ IF marks[Led[l]] = 0
       THEN Goto(l, "done") /\ UNCHANGED releases
       ELSE Goto(l, "broadcasts") /\ releases' = [releases EXCEPT ![Led[l]] = @ + 1]
    /\ UNCHANGED <<holder, marks, many, todo, at, seen, sleeps, settled>>

\* and wakes all candidates: ConditionVariableBroadcast().
Broadcast(l) ==
    /\ pc[l] = "broadcasts"
    /\ sleeps' = {}
    /\ Goto(l, "done")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, seen, settled>>

-----------------------------------------------------------------------------
(* The candidate: src/bid/campaign_many.c.                                 *)

ReadFirst == Rule("releases read before the bid")

\* wait_for_any(): ConditionVariablePrepareToSleep(), after enter_many()
Prepare(c) ==
    /\ pc[c] = IF Rule("prepared to sleep before the last look") THEN "prepare" ELSE "prepare late"
    /\ sleeps' = sleeps \cup {c}
    /\ IF Rule("prepared to sleep before the last look")
       THEN Goto(c, "looks") /\ todo' = [todo EXCEPT ![c] = Elections]
       ELSE Goto(c, "sleep") /\ todo' = todo
    /\ UNCHANGED <<holder, marks, many, releases, at, seen, settled>>

SkipPrepare(c) ==
    /\ ~Rule("prepared to sleep before the last look")
    /\ pc[c] = "prepare"
    /\ todo' = [todo EXCEPT ![c] = Elections]
    /\ Goto(c, "looks")
    /\ UNCHANGED <<holder, marks, many, releases, at, seen, sleeps, settled>>

\* enter_many() counts the candidate,
Enter(c) ==
    /\ pc[c] = IF Rule("mark before the last look") THEN "start" ELSE "mark late"
    /\ many' = many + 1
    /\ todo' = [todo EXCEPT ![c] = Elections]
    /\ Goto(c, "marks")
    /\ UNCHANGED <<holder, marks, releases, at, seen, sleeps, settled>>

\* and marks each election: le_registry_pin(),
Mark(c) ==
    /\ pc[c] = "marks"
    /\ IF todo[c] = {}
       THEN /\ Goto(c, IF Rule("mark before the last look") THEN "prepare" ELSE "sleep")
            /\ UNCHANGED <<marks, todo, at>>
       ELSE \E e \in todo[c] :
               /\ marks' = [marks EXCEPT ![e] = @ + 1]
               /\ todo' = [todo EXCEPT ![c] = @ \ {e}]
               /\ at' = [at EXCEPT ![c] = e]
               /\ Goto(c, IF ReadFirst THEN "reads" ELSE "marks")
    /\ UNCHANGED <<holder, many, releases, seen, sleeps, settled>>

\* and then reads its number of releases.
Read(c) ==
    /\ pc[c] = "reads"
    /\ seen' = [seen EXCEPT ![c][at[c]] = releases[at[c]]]
    /\ Goto(c, "marks")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, sleeps, settled>>

\* The mutant: it looks first.
Start(c) ==
    /\ ~Rule("mark before the last look")
    /\ pc[c] = "start"
    /\ Goto(c, "prepare")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, seen, sleeps, settled>>

\* Each mutant does one of these things after the first look.
AfterLook(c) ==
    CASE c \in settled -> "sleep"
      [] ~Rule("prepared to sleep before the last look") -> "prepare late"
      [] ~Rule("mark before the last look") -> "mark late"
      [] OTHER -> "sleep"

\* bid_for_due() and is_due(): it bids for those that were released since the
\* last bid, and at first for all, one by one,
Look(c) ==
    /\ pc[c] = "looks"
    /\ settled' = IF todo[c] = {} THEN settled \cup {c} ELSE settled
    /\ IF todo[c] = {}
       THEN Goto(c, AfterLook(c)) /\ UNCHANGED <<todo, at, seen>>
       ELSE \E e \in todo[c] :
               /\ todo' = [todo EXCEPT ![c] = @ \ {e}]
               /\ IF c \in settled /\ seen[c][e] = releases[e]
                  THEN UNCHANGED <<pc, at, seen>>
                  ELSE /\ at' = [at EXCEPT ![c] = e]
                       /\ seen' = IF c \in settled /\ ReadFirst
                                  THEN [seen EXCEPT ![c][e] = releases[e]] ELSE seen
                       /\ Goto(c, "bids")
    /\ UNCHANGED <<holder, marks, many, releases, sleeps>>

\* without waiting: bid_for().
Bid(c) ==
    /\ pc[c] = "bids"
    /\ IF holder[at[c]] = None
       THEN /\ holder' = [holder EXCEPT ![at[c]] = c]
            /\ Goto(c, "elected")
       ELSE /\ Goto(c, IF ReadFirst THEN "looks" ELSE "reads late")
            /\ UNCHANGED holder
    /\ UNCHANGED <<marks, many, releases, todo, at, seen, sleeps, settled>>

\* The mutant: it reads the number after the bid.
ReadLate(c) ==
    /\ pc[c] = "reads late"
    /\ seen' = [seen EXCEPT ![c][at[c]] = releases[at[c]]]
    /\ Goto(c, "looks")
    /\ UNCHANGED <<holder, marks, many, releases, todo, at, sleeps, settled>>

\* ConditionVariableTimedSleep() in le_sleep() in src/pg/liveness.c returns
\* when the candidate was taken off the list, and puts it there again.
Wake(c) ==
    /\ pc[c] = "sleep"
    /\ c \notin sleeps
    /\ sleeps' = sleeps \cup {c}
    /\ todo' = [todo EXCEPT ![c] = Elections]
    /\ Goto(c, "looks")
    /\ UNCHANGED <<holder, marks, many, releases, at, seen, settled>>

\* le_leave_many() and ConditionVariableCancelSleep().  The candidate leads, and
\* its term ends much later.
Leave(c) ==
    /\ pc[c] = "elected"
    /\ marks' = [e \in Elections |-> marks[e] - 1]
    /\ many' = many - 1
    /\ sleeps' = sleeps \ {c}
    /\ Goto(c, "leads")
    /\ UNCHANGED <<holder, releases, todo, at, seen, settled>>

-----------------------------------------------------------------------------
Leader(l) ==
    \/ Unlock(l) \/ LookForAny(l) \/ LookEarly(l) \/ Count(l) \/ Broadcast(l)

Candidate(c) ==
    \/ Enter(c) \/ Mark(c) \/ Read(c) \/ Start(c) \/ Prepare(c) \/ SkipPrepare(c)
    \/ Look(c) \/ Bid(c) \/ ReadLate(c) \/ Wake(c) \/ Leave(c)

Next ==
    \/ \E l \in Leaders : Leader(l)
    \/ \E c \in Candidates : Candidate(c)

\* Each leader ends its term, and no session stops in the middle.
Spec ==
    /\ Init
    /\ [][Next]_vars
    /\ \A l \in Leaders : WF_vars(Leader(l))
    /\ \A c \in Candidates : WF_vars(Candidate(c))

-----------------------------------------------------------------------------
TypeOK == \A e \in Elections : marks[e] <= Cardinality(Candidates)

\* doc/guarantees.md: "No wake-up is lost.  When an election becomes free, whatever
\* ended the term, the next candidate is elected".  There are as many elections that become free as candidates.
EachIsElected == \A c \in Candidates : <>(pc[c] = "leads")

\* The same as an invariant: no candidate sleeps for good while an election is
\* free.  A session that has released a lock still wakes it.
NoneSleepsInVain ==
    \A c \in Candidates : pc[c] = "sleep" /\ c \in sleeps =>
        \A e \in Elections : holder[e] # None
            \/ \E l \in Leaders : pc[l] \notin {"leads", "done"}

=============================================================================
