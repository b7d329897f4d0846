------------------------------- MODULE Wakeup -------------------------------
(***************************************************************************)
(* How a candidate for many elections is woken: the mark in the registry's *)
(* entries, the ring of released elections, and its condition variable.    *)
(*                                                                         *)
(* The candidate has no timer here.  In the C code, it also looks again    *)
(* after some time (look_again_at() in src/bid/campaign_many.c), so a      *)
(* lost wake-up would only take that long.  The model shows that none is   *)
(* lost where none may be.                                                 *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - leases, and locks that the application releases without the         *)
(*     extension's knowledge, for which the timer is needed                *)
(*   - bids that acquire the lock in vain (le_release_in_vain() in         *)
(*     src/lock/lock.c), which wake no candidate.  The candidate           *)
(*     that was refused meanwhile looks again by its timer.  Here, a       *)
(*     candidate that gets the lock is elected.                            *)
(*   - a candidate that leaves                                             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Elections,
    Leaders,        \* the sessions that lead at first, one for each election
    Followers,      \* the candidates for all elections
    None,           \* a model value: no session
    Ring,           \* the size of the ring: LE_RELEASES
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    holder,         \* for each election: the session that holds its lock
    marks,          \* for each election: how many candidates follow it
    followers,      \* how many candidates follow any election
    released,       \* all keys that were written into the ring, in order
    pc,             \* what each session does
    todo,           \* the elections that a candidate is about to mark, or to try
    place,          \* the candidate's place in the ring
    sleeps,         \* the candidates in the condition variable's list
    settled         \* the candidates that have had their first look

vars == <<holder, marks, followers, released, pc, todo, place, sleeps, settled>>

Rule(name) == name \notin Omitted

\* Each leader has an election of its own.
Led == CHOOSE f \in [Leaders -> Elections] : \A l, m \in Leaders : l # m => f[l] # f[m]

Init ==
    /\ holder = [e \in Elections |->
                    IF \E l \in Leaders : Led[l] = e
                    THEN CHOOSE l \in Leaders : Led[l] = e ELSE None]
    /\ marks = [e \in Elections |-> 0]
    /\ followers = 0
    /\ released = <<>>
    /\ pc = [p \in Leaders \cup Followers |-> IF p \in Leaders THEN "leads" ELSE "start"]
    /\ todo = [f \in Followers |-> Elections]
    /\ place = [f \in Followers |-> 0]
    /\ sleeps = {}
    /\ settled = {}

Goto(p, step) == pc' = [pc EXCEPT ![p] = step]

-----------------------------------------------------------------------------
(* The leader.                                                             *)

Early == ~Rule("mark looked for after the release")

\* LockRelease() in le_release_for_session() in src/lock/lock.c
Unlock(l) ==
    /\ pc[l] = IF Early THEN "unlocks" ELSE "leads"
    /\ holder' = [holder EXCEPT ![Led[l]] = None]
    /\ Goto(l, IF Early THEN "rings" ELSE "looks")
    /\ UNCHANGED <<marks, followers, released, todo, place, sleeps, settled>>

\* wake_if_followed() and wake_followers() in src/lock/wake.c look for
\* candidates: first whether any election is followed, then at the mark.
LookForAny(l) ==
    /\ pc[l] = IF Early THEN "leads" ELSE "looks"
    /\ Goto(l, IF followers = 0 THEN IF Early THEN "unlocks in vain" ELSE "done"
               ELSE "looks at mark")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, sleeps, settled>>

LookAtMark(l) ==
    /\ pc[l] = "looks at mark"
    /\ Goto(l, IF marks[Led[l]] = 0 THEN IF Early THEN "unlocks in vain" ELSE "done"
               ELSE IF Early THEN "unlocks" ELSE "rings")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, sleeps, settled>>

UnlockInVain(l) ==
    /\ pc[l] = "unlocks in vain"
    /\ holder' = [holder EXCEPT ![Led[l]] = None]
    /\ Goto(l, "done")
    /\ UNCHANGED <<marks, followers, released, todo, place, sleeps, settled>>

\* Then it writes the key into the ring,
WriteKey(l) ==
    /\ pc[l] = "rings"
    /\ released' = Append(released, Led[l])
    /\ Goto(l, "broadcasts")
    /\ UNCHANGED <<holder, marks, followers, todo, place, sleeps, settled>>

\* and wakes all candidates: ConditionVariableBroadcast().
Broadcast(l) ==
    /\ pc[l] = "broadcasts"
    /\ sleeps' = {}
    /\ Goto(l, "done")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, settled>>

-----------------------------------------------------------------------------
(* The candidate: src/bid/campaign_many.c.                            *)

\* follow_all() counts the candidate, marks all elections,
Follow(f) ==
    /\ pc[f] = IF Rule("mark before the last look") THEN "start" ELSE "mark late"
    /\ followers' = followers + 1
    /\ todo' = [todo EXCEPT ![f] = Elections]
    /\ Goto(f, "marks")
    /\ UNCHANGED <<holder, marks, released, place, sleeps, settled>>

Mark(f) ==
    /\ pc[f] = "marks"
    /\ IF todo[f] = {}
       THEN /\ Goto(f, IF Rule("mark before the last look") THEN "place" ELSE "sleep")
            /\ UNCHANGED <<marks, todo>>
       ELSE \E e \in todo[f] :
               /\ marks' = [marks EXCEPT ![e] = @ + 1]
               /\ todo' = [todo EXCEPT ![f] = @ \ {e}]
               /\ pc' = pc
    /\ UNCHANGED <<holder, followers, released, place, sleeps, settled>>

\* The mutant: it tries first.
Start(f) ==
    /\ ~Rule("mark before the last look")
    /\ pc[f] = "start"
    /\ Goto(f, "place")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, sleeps, settled>>

\* and reads its place in the ring: le_follow_from() in src/lock/wake.c.
ReadPlace(f) ==
    /\ pc[f] = IF Rule("place read before the last look") THEN "place" ELSE "place late"
    /\ place' = [place EXCEPT ![f] = Len(released)]
    /\ Goto(f, IF Rule("place read before the last look") THEN "prepare" ELSE "sleep")
    /\ UNCHANGED <<holder, marks, followers, released, todo, sleeps, settled>>

SkipPlace(f) ==
    /\ ~Rule("place read before the last look")
    /\ pc[f] = "place"
    /\ Goto(f, "prepare")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, sleeps, settled>>

\* wait_for_any(): ConditionVariablePrepareToSleep()
Prepare(f) ==
    /\ pc[f] = IF Rule("prepared to sleep before the last look") THEN "prepare" ELSE "prepare late"
    /\ sleeps' = sleeps \cup {f}
    /\ IF Rule("prepared to sleep before the last look")
       THEN Goto(f, "tries") /\ todo' = [todo EXCEPT ![f] = Elections]
       ELSE Goto(f, "sleep") /\ todo' = todo
    /\ UNCHANGED <<holder, marks, followers, released, place, settled>>

SkipPrepare(f) ==
    /\ ~Rule("prepared to sleep before the last look")
    /\ pc[f] = "prepare"
    /\ todo' = [todo EXCEPT ![f] = Elections]
    /\ Goto(f, "tries")
    /\ UNCHANGED <<holder, marks, followers, released, place, sleeps, settled>>

\* Each mutant does one of these things after the first look.
AfterLook(f) ==
    CASE f \in settled -> "sleep"
      [] ~Rule("prepared to sleep before the last look") -> "prepare late"
      [] ~Rule("mark before the last look") -> "mark late"
      [] ~Rule("place read before the last look") -> "place late"
      [] OTHER -> "sleep"

\* bid_for_all(), bid_for_some(): it tries the elections one by one, without
\* waiting.
TryOne(f) ==
    /\ pc[f] = "tries"
    /\ settled' = IF todo[f] = {} THEN settled \cup {f} ELSE settled
    /\ IF todo[f] = {}
       THEN Goto(f, AfterLook(f)) /\ UNCHANGED <<holder, todo>>
       ELSE \E e \in todo[f] :
               IF holder[e] = None
               THEN /\ holder' = [holder EXCEPT ![e] = f]
                    /\ Goto(f, "elected")
                    /\ todo' = [todo EXCEPT ![f] = {}]
               ELSE /\ todo' = [todo EXCEPT ![f] = @ \ {e}]
                    /\ UNCHANGED <<holder, pc>>
    /\ UNCHANGED <<marks, followers, released, place, sleeps>>

\* ConditionVariableTimedSleep() in le_sleep() in src/pg/liveness.c returns
\* when the candidate was taken off the list, and puts it there again.
Wake(f) ==
    /\ pc[f] = "sleep"
    /\ f \notin sleeps
    /\ sleeps' = sleeps \cup {f}
    /\ Goto(f, "reads")
    /\ UNCHANGED <<holder, marks, followers, released, todo, place, settled>>

\* le_releases_since() in src/lock/wake.c: the ring has the last keys only.
ReadRing(f) ==
    LET n == Len(released)
        first == IF n - place[f] > Ring THEN n - Ring + 1 ELSE place[f] + 1
    IN
    /\ pc[f] = "reads"
    /\ todo' = [todo EXCEPT ![f] =
                    IF n - place[f] > Ring /\ Rule("overflow of the ring noticed")
                    THEN Elections
                    ELSE {released[i] : i \in first .. n}]
    /\ place' = [place EXCEPT ![f] = n]
    /\ Goto(f, "tries")
    /\ UNCHANGED <<holder, marks, followers, released, sleeps, settled>>

\* le_stop_following() and ConditionVariableCancelSleep().  The candidate leads,
\* and its term ends much later.
StopFollowing(f) ==
    /\ pc[f] = "elected"
    /\ marks' = [e \in Elections |-> marks[e] - 1]
    /\ followers' = followers - 1
    /\ sleeps' = sleeps \ {f}
    /\ Goto(f, "leads")
    /\ UNCHANGED <<holder, released, todo, place, settled>>

-----------------------------------------------------------------------------
Leader(l) ==
    \/ Unlock(l) \/ LookForAny(l) \/ LookAtMark(l) \/ UnlockInVain(l) \/ WriteKey(l)
    \/ Broadcast(l)

Follower(f) ==
    \/ Follow(f) \/ Mark(f) \/ Start(f) \/ ReadPlace(f) \/ SkipPlace(f) \/ Prepare(f)
    \/ SkipPrepare(f) \/ TryOne(f) \/ Wake(f) \/ ReadRing(f) \/ StopFollowing(f)

Next ==
    \/ \E l \in Leaders : Leader(l)
    \/ \E f \in Followers : Follower(f)

\* Each leader ends its term, and no session stops in the middle.
Spec ==
    /\ Init
    /\ [][Next]_vars
    /\ \A l \in Leaders : WF_vars(Leader(l))
    /\ \A f \in Followers : WF_vars(Follower(f))

-----------------------------------------------------------------------------
TypeOK == \A e \in Elections : marks[e] <= Cardinality(Followers)

\* doc/guarantees.md: "No wake-up is lost.  When an election becomes free, whatever
\* ended the term, the next candidate is elected".  There are as many elections that become free as candidates.
EachIsElected == \A f \in Followers : <>(pc[f] = "leads")

\* The same as an invariant: no candidate sleeps for good while an election is
\* free.  A session that has released a lock still wakes it.
NoneSleepsInVain ==
    \A f \in Followers : pc[f] = "sleep" /\ f \in sleeps =>
        \A e \in Elections : holder[e] # None
            \/ \E l \in Leaders : pc[l] \notin {"leads", "done"}

=============================================================================
