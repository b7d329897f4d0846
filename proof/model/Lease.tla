------------------------------- MODULE Lease -------------------------------
(***************************************************************************)
(* The leases of one election: their deadline in the registry, their rows  *)
(* in the table le_leases, and what their holders believe, through crash,  *)
(* restart and promotion.                                                  *)
(*                                                                         *)
(* The write-ahead log (WAL) is a sequence of records.  The server has the *)
(* first of them on its disk, and the standby has received the first of    *)
(* those.  A crash keeps what is on disk, and a promotion keeps what the   *)
(* standby has received.  The rows of the table are what the WAL says.     *)
(*                                                                         *)
(* Time is true time.  The server counts a deadline by its monotonic       *)
(* clock, and a holder by its own; all of these clocks run at the same     *)
(* rate.  The drift of clocks is what the last third of the ttl is for in  *)
(* doc/scopes.md; it is not modeled.                                       *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - the election's lock: at most one bid, or change of a lease, is in   *)
(*     progress.  Election.tla shows how that is achieved.                 *)
(*   - eviction, DROP EXTENSION, and the deletion of void rows             *)
(*   - a primary that goes on after a standby was promoted: doc/faults.md, *)
(*     "Split Brain"                                                       *)
(*   - le_depose(), after which a holder works until it asks again         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Clients,        \* the programs that take leases
    None,           \* a model value: no client
    Ttls,           \* the ttls that they ask for
    MaxTtl,         \* leader_election.max_ttl
    MaxClock,       \* the bound of time
    MaxTerms,       \* the bound of the number of terms
    MaxFaults,      \* the bound of the number of crashes and promotions
    MaxWal,         \* the bound of the WAL, for a ttl that is changed again and again
    Sync,           \* is the standby synchronous?
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    now,            \* time
    wal,            \* the WAL of the primary
    flushed,        \* how much of it is on disk
    standby,        \* how much of it the standby has received
    line,           \* the timeline of the primary
    since,          \* le_registry_primary_since(): 0 until the first use
    loaded,         \* has the table been read since the start?
    reg,            \* the registry's record of the election
    last,           \* the token of the last term
    work,           \* the bid, or the change of a ttl, that is in progress
    client,         \* what each client believes and asks
    faults,         \* the number of crashes and promotions
    ended,          \* the leases that have ended, as was answered
    lost_end        \* has a promotion lost the end of a lease that arrived?

vars == <<now, wal, flushed, standby, line, since, loaded, reg, last, work,
          client, faults, ended, lost_end>>

Rule(name) == name \notin Omitted

Over == 0
Uncommitted == MaxClock + MaxTtl + 1
DeadlineRuns(d) == d # Uncommitted /\ d > now

NoTerm == [token |-> 0, scope |-> "none", deadline |-> Over, ttl |-> 0, voided |-> 0]
NoWork == [step |-> "none", scope |-> "none", client |-> None, at |-> 0,
           ttl |-> 0, lsn |-> 0]
NewClient == [step |-> "idle", token |-> 0, until |-> 0, at |-> 0, ttl |-> 0,
              answer |-> 0]

Symmetry == Permutations(Clients)

Init ==
    /\ now = 1
    /\ wal = <<[kind |-> "origin", token |-> 0, value |-> 1]>>
    /\ flushed = 1
    /\ standby = 1
    /\ line = 1
    /\ since = 0
    /\ loaded = FALSE
    /\ reg = NoTerm
    /\ last = 0
    /\ work = NoWork
    /\ client = [c \in Clients |-> NewClient]
    /\ faults = 0
    /\ ended = {}
    /\ lost_end = FALSE

Tick ==
    /\ now < MaxClock
    /\ now' = now + 1
    /\ UNCHANGED <<wal, flushed, standby, line, since, loaded, reg, last, work,
                   client, faults, ended, lost_end>>

-----------------------------------------------------------------------------
(* WAL and table.                                                          *)

Insert(token, ttl) == [kind |-> "insert", token |-> token, value |-> ttl]
SetTtl(token, ttl) == [kind |-> "ttl", token |-> token, value |-> ttl]
Void(token) == [kind |-> "ttl", token |-> token, value |-> 0]
Origin(l) == [kind |-> "origin", token |-> 0, value |-> l]

Inserted(w) == {w[i].token : i \in {j \in DOMAIN w : w[j].kind = "insert"}}

\* The ttl in the lease's row: that of the last record of it.  0: void.
RowTtl(w, token) ==
    LET ofRow == {i \in DOMAIN w : w[i].token = token}
    IN w[CHOOSE i \in ofRow : \A j \in ofRow : j <= i].value

\* The value of the sequence le_lease_origin_seq
KnownOrigin(w) ==
    LET origins == {i \in DOMAIN w : w[i].kind = "origin"}
    IN w[CHOOSE i \in origins : \A j \in origins : j <= i].value

\* le_await_durable() and le_make_durable() in src/pg/durability.c
Durable(lsn) == lsn <= flushed /\ (Sync => lsn <= standby)

Flush ==
    /\ flushed < Len(wal)
    /\ flushed' = flushed + 1
    /\ UNCHANGED <<now, wal, standby, line, since, loaded, reg, last, work, client,
                   faults, ended, lost_end>>

Stream ==
    /\ standby < flushed
    /\ standby' = standby + 1
    /\ UNCHANGED <<now, wal, flushed, line, since, loaded, reg, last, work, client,
                   faults, ended, lost_end>>

-----------------------------------------------------------------------------
(* Faults.  All sessions end, and the registry is empty.  A client whose   *)
(* lease had begun, and that had no answer yet, begins anew.               *)

Restart(kept) ==
    /\ faults < MaxFaults
    /\ faults' = faults + 1
    /\ wal' = kept
    /\ flushed' = Len(kept)
    /\ since' = 0
    /\ loaded' = FALSE
    /\ reg' = NoTerm
    /\ work' = NoWork
    /\ client' = [c \in Clients |-> IF client[c].step = "begun" THEN NewClient ELSE client[c]]
    /\ UNCHANGED <<now, last, ended>>

\* The mutant: after a crash, the server relies on what it finds.
Crash ==
    /\ Restart(IF Rule("wait begins again after a crash")
               THEN SubSeq(wal, 1, flushed)
               ELSE Append(SubSeq(wal, 1, flushed), Origin(line)))
    /\ UNCHANGED <<standby, line, lost_end>>

\* The standby is promoted, and gets a standby of its own.
Promote ==
    /\ Restart(SubSeq(wal, 1, standby))
    /\ line' = line + 1
    /\ lost_end' = (lost_end \/ \E i \in standby + 1 .. Len(wal) :
                        wal[i].kind = "ttl" /\ wal[i].token \in Inserted(wal'))
    /\ UNCHANGED standby

-----------------------------------------------------------------------------
(* The server.                                                             *)

\* le_leases_ready() in src/lease/lease.c, before the first use after a
\* start: le_registry_load_lease() keeps the row with the greatest token, and
\* le_registry_start_loaded() lets a lease run for its full ttl.
Load ==
    LET tokens == Inserted(wal)
        token == CHOOSE k \in tokens : \A j \in tokens : j <= k
        ttl == RowTtl(wal, token)
    IN
    /\ ~loaded
    /\ loaded' = TRUE
    /\ since' = now
    /\ reg' = IF tokens = {} THEN NoTerm
              ELSE [token |-> token, scope |-> "lease", ttl |-> ttl, voided |-> 0,
                    deadline |-> IF ttl = 0 \/ ~Rule("lease runs its full ttl after a restart")
                                 THEN Over ELSE now + ttl]
    /\ UNCHANGED <<now, wal, flushed, standby, line, last, work, client, faults, ended,
                   lost_end>>

\* Does the client still wait for this answer?
Listens(step) ==
    LET c == work.client
    IN client[c].step = step /\ client[c].at = work.at /\ client[c].ttl = work.ttl

Answer(c, token) == client' = [client EXCEPT ![c].step = "answered", ![c].answer = token]

\* le_grants_from() in src/term/origin.c
MustWait == KnownOrigin(wal) # line /\ since + MaxTtl > now

\* acquire_now() in src/bid/campaign.c: no lease runs, and a bid begins.
\* A bid that is denied is one that has not begun.  In session scope, no client
\* of a lease is concerned.
Bid(scope, c, ttl) ==
    /\ last < MaxTerms
    /\ loaded
    /\ work = NoWork
    /\ reg.scope # "session"
    /\ ~(reg.scope = "lease" /\ DeadlineRuns(reg.deadline))
    /\ work' = [step |-> IF reg.token = 0 THEN "vacant" ELSE "void", scope |-> scope,
                client |-> c, at |-> IF c = None THEN 0 ELSE client[c].at, ttl |-> ttl,
                lsn |-> 0]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last,
                   client, faults, ended, lost_end>>

BidForLease(c) == client[c].step = "takes" /\ Bid("lease", c, client[c].ttl)
BidForSession == Bid("session", None, 0)

\* void_lease() in src/bid/succession.c, with le_lease_overwrite_ttl() in
\* src/lease/table.c
VoidRow ==
    /\ work.step = "void"
    /\ IF DeadlineRuns(reg.deadline)
       THEN work' = NoWork /\ UNCHANGED <<wal, reg>>    \* It was renewed.
       ELSE /\ wal' = IF reg.voided = 0 /\ RowTtl(wal, reg.token) # 0
                      THEN Append(wal, Void(reg.token)) ELSE wal
            /\ reg' = [reg EXCEPT !.deadline = Over,
                                  !.voided = IF @ = 0 THEN Len(wal') ELSE @]
            /\ work' = [work EXCEPT !.step = "await"]
    /\ UNCHANGED <<now, flushed, standby, line, since, loaded, last, client,
                   faults, ended, lost_end>>

\* clear_lease() in src/bid/succession.c removes the record when the void
\* row is durable.
AwaitVoid ==
    /\ work.step = "await"
    /\ Durable(reg.voided) \/ ~Rule("end of lease durable before the next term")
    /\ reg' = NoTerm
    /\ work' = [work EXCEPT !.step = "vacant"]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, last, client,
                   faults, ended, lost_end>>

\* le_look_at_vacancy() in src/bid/succession.c.  When the wait has ended,
\* le_grants_from() writes the origin, and flushes it.
Vacant ==
    /\ work.step = "vacant"
    /\ ~(work.scope = "lease" /\ MustWait /\ Rule("wait after promotion"))
    /\ wal' = IF /\ KnownOrigin(wal) # line
                 /\ work.scope = "lease" \/ ~Rule("leases have an origin of their own")
              THEN Append(wal, Origin(line)) ELSE wal
    /\ work' = [work EXCEPT !.step = "grant", !.lsn = IF wal' = wal THEN 0 ELSE Len(wal')]
    /\ UNCHANGED <<now, flushed, standby, line, since, loaded, reg, last, client,
                   faults, ended, lost_end>>

\* le_grant_lease() in src/lease/grant.c, and the commit record of its
\* transaction; or le_begin_term() in src/term/term.c
Grant ==
    /\ work.step = "grant"
    /\ work.lsn <= flushed
    /\ last' = last + 1
    /\ IF work.scope = "lease"
       THEN /\ wal' = Append(wal, Insert(last + 1, work.ttl))
            /\ work' = [work EXCEPT !.step = "commit", !.lsn = Len(wal')]
       ELSE wal' = wal /\ work' = NoWork
    /\ ended' = IF work.scope = "lease" THEN ended ELSE ended \cup 1 .. last
    /\ reg' = [token |-> last + 1, scope |-> work.scope, ttl |-> work.ttl,
               deadline |-> Uncommitted, voided |-> 0]
    /\ UNCHANGED <<now, flushed, standby, line, since, loaded, client, faults, lost_end>>

\* begin_grant() in src/lease/grant.c, after the commit, which is flushed.
\* Its holder has no answer yet.  If there is a synchronous standby, the lease
\* begins later.
Begin ==
    LET c == work.client IN
    /\ work.step = "commit"
    /\ work.lsn <= flushed \/ ~Rule("lease durable before it begins")
    /\ reg' = [reg EXCEPT !.deadline = now + reg.ttl]
    /\ client' = IF Listens("takes")
                 THEN [client EXCEPT ![c].step = "begun", ![c].answer = reg.token]
                 ELSE client
    /\ ended' = ended \cup 1 .. reg.token - 1
    /\ work' = NoWork
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, last, faults,
                   lost_end>>

Told(c) ==
    /\ client[c].step = "begun"
    /\ client' = [client EXCEPT ![c].step = "answered"]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last, work,
                   faults, ended, lost_end>>

\* The client does not wait for the answer, and finds the token in a view.
Find(c) ==
    /\ client[c].step = "begun"
    /\ client' = [client EXCEPT ![c] = [NewClient EXCEPT !.token = client[c].answer]]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last, work,
                   faults, ended, lost_end>>

\* A term in session scope ends: end_term() in src/term/term.c.
EndSession ==
    /\ reg.scope = "session"
    /\ reg' = NoTerm
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, last, work,
                   client, faults, ended, lost_end>>

IsRunning(token) == reg.scope = "lease" /\ reg.token = token /\ DeadlineRuns(reg.deadline)

\* le_lease_renew() in src/lease/lease.c.  If the ttl is another one, its change
\* follows.
Renew(c) ==
    /\ client[c].step = "renews"
    /\ loaded
    /\ IF ~IsRunning(client[c].token)
       THEN Answer(c, 0) /\ UNCHANGED <<reg, work>>
       ELSE /\ reg' = [reg EXCEPT !.deadline = now + reg.ttl]
            /\ IF client[c].ttl = reg.ttl
               THEN Answer(c, reg.token) /\ work' = work
               ELSE /\ work = NoWork    \* the guard lock
                    /\ work' = [step |-> "look", scope |-> "change", client |-> c,
                                at |-> client[c].at, ttl |-> client[c].ttl, lsn |-> 0]
                    /\ client' = client
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, last, faults, ended,
                   lost_end>>

\* change_ttl() in src/lease/lease.c: a longer ttl is recorded, durably, before
\* it takes effect, and a shorter one after that.
ChangeTtl ==
    LET c == work.client
        longer == work.ttl > reg.ttl
    IN
    /\ work.scope = "change"
    /\ \/ /\ work.step = "look"
          /\ IF IsRunning(client[c].token) /\ longer
                /\ Rule("longer ttl recorded before it takes effect")
             THEN /\ wal' = Append(wal, SetTtl(reg.token, work.ttl))
                  /\ work' = [work EXCEPT !.step = "set", !.lsn = Len(wal')]
             ELSE wal' = wal /\ work' = [work EXCEPT !.step = "set"]
          /\ UNCHANGED <<reg, client>>
       \/ /\ work.step = "set"
          /\ Durable(work.lsn)
          /\ IF IsRunning(client[c].token)
             THEN /\ reg' = [reg EXCEPT !.deadline = now + work.ttl, !.ttl = work.ttl]
                  /\ wal' = IF ~longer THEN Append(wal, SetTtl(reg.token, work.ttl)) ELSE wal
                  /\ work' = [work EXCEPT !.step = "answer",
                                          !.lsn = IF ~longer THEN Len(wal') ELSE @]
             ELSE wal' = wal /\ reg' = reg /\ work' = [work EXCEPT !.step = "fail"]
          /\ UNCHANGED client
       \/ /\ work.step \in {"answer", "fail"}
          /\ Durable(work.lsn)
          /\ IF Listens("renews")
             THEN Answer(c, IF work.step = "answer" THEN client[c].token ELSE 0)
             ELSE client' = client
          /\ work' = NoWork
          /\ UNCHANGED <<wal, reg>>
    /\ UNCHANGED <<now, flushed, standby, line, since, loaded, last, faults, ended,
                   lost_end>>

-----------------------------------------------------------------------------
(* The holder.                                                             *)

Min(a, b) == IF a < b THEN a ELSE b

\* A client asks for a lease, or renews its own.  If it asks for a shorter ttl,
\* it counts by that one from now on, as the answer may be lost.
Ask(c) ==
    /\ client[c].step = "idle"
    /\ \E ttl \in Ttls :
        client' = [client EXCEPT
            ![c].step = IF client[c].token = 0 THEN "takes" ELSE "renews",
            ![c].at = now,
            ![c].ttl = ttl,
            ![c].until = IF Rule("shorter ttl counts from the question")
                         THEN Min(@, now + ttl) ELSE @]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last,
                   work, faults, ended, lost_end>>

\* doc/scopes.md: a holder works for a ttl since before the question was sent,
\* and less.
Hear(c) ==
    /\ client[c].step = "answered"
    /\ client' = [client EXCEPT
            ![c] = [NewClient EXCEPT
                !.token = client[c].answer,
                !.until = IF client[c].answer = 0 THEN 0
                          ELSE IF Rule("holder counts from before the question")
                               THEN client[c].at + client[c].ttl
                               ELSE now + client[c].ttl]]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last,
                   work, faults, ended, lost_end>>

\* The answer is lost.  The client keeps its token, and works until its time is
\* over.  A question that is lost is one that was not asked.
Lose(c) ==
    /\ client[c].step = "answered"
    /\ client' = [client EXCEPT ![c].step = "idle", ![c].at = 0, ![c].ttl = 0,
                                ![c].answer = 0]
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last,
                   work, faults, ended, lost_end>>

\* The client has stopped to work, and resigns: le_lease_resign() in
\* src/lease/lease.c, under the guard lock.
Resign(c) ==
    /\ client[c].step = "idle"
    /\ client[c].token # 0
    /\ loaded
    /\ work = NoWork
    /\ client' = [client EXCEPT ![c] = NewClient]
    /\ IF IsRunning(client[c].token)
       THEN /\ wal' = Append(wal, Void(reg.token))
            /\ reg' = [reg EXCEPT !.deadline = Over, !.voided = Len(wal')]
            /\ work' = [NoWork EXCEPT !.step = "resign", !.lsn = Len(wal')]
       ELSE UNCHANGED <<wal, reg, work>>
    /\ UNCHANGED <<now, flushed, standby, line, since, loaded, last, faults, ended,
                   lost_end>>

\* The call returns when that is durable.
Resigned ==
    /\ work.step = "resign"
    /\ Durable(work.lsn) \/ ~Rule("resignation durable before the answer")
    /\ work' = NoWork
    /\ ended' = ended \cup {reg.token}
    /\ UNCHANGED <<now, wal, flushed, standby, line, since, loaded, reg, last, client,
                   faults, lost_end>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ Flush
    \/ Stream
    \/ Crash
    \/ Promote
    \/ Load
    \/ BidForSession
    \/ VoidRow
    \/ AwaitVoid
    \/ Vacant
    \/ Grant
    \/ Begin
    \/ EndSession
    \/ ChangeTtl
    \/ Resigned
    \/ \E c \in Clients : BidForLease(c)
    \/ \E c \in Clients : Told(c)
    \/ \E c \in Clients : Find(c)
    \/ \E c \in Clients : Renew(c)
    \/ \E c \in Clients : Ask(c)
    \/ \E c \in Clients : Hear(c)
    \/ \E c \in Clients : Lose(c)
    \/ \E c \in Clients : Resign(c)

Spec == Init /\ [][Next]_vars

\* What follows after the end of a lease was lost is excused below.
Bound == ~lost_end /\ Len(wal) <= MaxWal

-----------------------------------------------------------------------------
Works(c) == client[c].until > now

TypeOK == standby <= flushed /\ flushed <= Len(wal)

\* doc/scopes.md: "So the client has stopped before the server elects another
\* leader."
\*
\* The exception is an asynchronous standby.  doc/faults.md: "A lease whose end
\* the standby had not received can run again."
AtMostOneWorks == lost_end \/ Cardinality({c \in Clients : Works(c)}) <= 1

\* doc/guarantees.md: "a new lease never begins while a lease runs that the
\* standby had not received."
RunsAlone ==
    reg.scope = "lease" /\ DeadlineRuns(reg.deadline) =>
        lost_end \/ \A c \in Clients : Works(c) => client[c].token = reg.token

\* doc/guarantees.md: "A lease that was resigned, deposed or followed by another
\* term does not come back after a restart."
EndedStaysEnded ==
    reg.scope = "lease" /\ DeadlineRuns(reg.deadline) => lost_end \/ reg.token \notin ended

\* doc/guarantees.md: "A lease survives a restart or crash of the server [...].
\* No candidate is elected before it has ended."  While a holder works, its lease
\* is in the table, unless a promotion has lost it.
WorksByRow ==
    \A c \in Clients : Works(c) /\ line = 1 =>
        LET disk == SubSeq(wal, 1, flushed)
        IN client[c].token \in Inserted(disk) /\ RowTtl(disk, client[c].token) # 0

\* doc/scopes.md: "The server counts the ttl from the time when it handles the
\* renewal, which is later than the time when the client asked."
HolderStopsFirst ==
    reg.scope = "lease" =>
        \A c \in Clients :
            Works(c) /\ client[c].token = reg.token => client[c].until <= reg.deadline

\* src/lease/lease.c: "The ttl in the table is never shorter than the one in the
\* registry, so that a client that was promised the longer one has it after a
\* restart, too."
LongestTtlOnDisk ==
    IsRunning(reg.token) =>
        LET disk == SubSeq(wal, 1, flushed)
        IN reg.token \in Inserted(disk) /\ RowTtl(disk, reg.token) >= reg.ttl

\* doc/guarantees.md: "No candidate is elected before it has ended."  That holds for
\* all scopes as long as there is no failover.
SessionAlone == reg.scope = "session" /\ line = 1 => \A c \in Clients : ~Works(c)

=============================================================================
