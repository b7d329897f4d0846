------------------------------- MODULE Token -------------------------------
(***************************************************************************)
(* The tokens of one database: blocks that are drawn from the sequence     *)
(* le_token_seq, through crash and promotion.                              *)
(*                                                                         *)
(* As in Lease.tla, the WAL is a sequence of records.  The server has the  *)
(* first of them on its disk, and the standby has received the first of    *)
(* those.                                                                  *)
(*                                                                         *)
(* The numbers are small here: a block has Block tokens instead of 1024,   *)
(* and the clock advances by PerTick tokens instead of four million in a   *)
(* second.  The model assumes what src/term/origin.c assumes: clocks of    *)
(* servers do not go back, the server draws fewer tokens in a tick than    *)
(* PerTick, and a restart takes a tick or more.                            *)
(*                                                                         *)
(* Not in this module:                                                     *)
(*   - the election's lock and the lock on the sequence: sessions draw     *)
(*     blocks one after the other, but wait for durability at the same     *)
(*     time                                                                *)
(*   - a sequence that is created anew, dumps, and copies of the database  *)
(*   - a clock that was set back: doc/guarantees.md, "Growing tokens"      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, TLC

CONSTANTS
    Block,          \* how many tokens a block has: LE_TOKEN_BLOCK
    PerTick,        \* by how many tokens the clock advances: LE_TOKENS_PER_SECOND
    Day,            \* what a skipped timeline counts, in ticks: SECS_PER_DAY
    Leap,           \* how many tokens are left out: LE_TOKEN_LEAP
    MaxClock,       \* the bound of the clock
    MaxTokens,      \* the bound of the number of tokens that are handed out
    MaxFaults,      \* the bound of the number of crashes and promotions
    Sync,           \* is the standby synchronous?
    Omitted         \* the rules that a mutant leaves out

VARIABLES
    clock,          \* the wall clock
    wal,            \* the values of the sequence, with the origin, as written
    flushed,        \* how much of it is on disk
    standby,        \* how much of it the standby has received
    line,           \* the timeline of the primary
    next, end,      \* the block that is offered, in the registry
    drawn,          \* the block that was drawn, but is not offered yet
    in_tick,        \* how many blocks were drawn since the last tick
    greatest,       \* the greatest token that was handed out
    count,          \* how many were handed out
    grew,           \* was each of them greater than the one before?
    faults

vars == <<clock, wal, flushed, standby, line, next, end, drawn, in_tick, greatest,
          count, grew, faults>>

Rule(name) == name \notin Omitted

Max(a, b) == IF a > b THEN a ELSE b

NoBlock == [first |-> 0, lsn |-> 0]

Init ==
    /\ clock = 1
    /\ wal = <<[value |-> 0, origin |-> 0]>>
    /\ flushed = 1
    /\ standby = 1
    /\ line = 1
    /\ next = 0
    /\ end = 0
    /\ drawn = NoBlock
    /\ in_tick = 0
    /\ greatest = 0
    /\ count = 0
    /\ grew = TRUE
    /\ faults = 0

Tick ==
    /\ clock < MaxClock
    /\ clock' = clock + 1
    /\ in_tick' = 0
    /\ UNCHANGED <<wal, flushed, standby, line, next, end, drawn, greatest, count,
                   grew, faults>>

\* le_sequence_read() in src/pg/relation.c
Read == wal[Len(wal)]

Flush ==
    /\ flushed < Len(wal)
    /\ flushed' = flushed + 1
    /\ UNCHANGED <<clock, wal, standby, line, next, end, drawn, in_tick, greatest,
                   count, grew, faults>>

Stream ==
    /\ standby < flushed
    /\ standby' = standby + 1
    /\ UNCHANGED <<clock, wal, flushed, line, next, end, drawn, in_tick, greatest,
                   count, grew, faults>>

-----------------------------------------------------------------------------
\* le_first_token() in src/term/origin.c
Origins(then) == IF ~Rule("new origin after promotion") THEN 0
                 ELSE IF line > then THEN line - then ELSE 0

FirstToken(last_, then) ==
    LET n == Origins(then)
        by_clock == (clock + (n - 1) * Day) * PerTick
        leap == n * Leap
    IN IF n = 0 THEN last_ + 1
       ELSE IF by_clock > last_ /\ n = 1 THEN by_clock + 1
       ELSE Max(by_clock, last_ + (IF Rule("leap over tokens that the clock does not cover")
                                   THEN leap ELSE 0)) + 1

\* token_floor() in src/term/token.c
Floor == IF drawn.first # 0 THEN drawn.first + Block - 1
         ELSE IF end > 0 THEN end - 1 ELSE 0

\* draw_block() and advance_sequence() in src/term/token.c
Draw ==
    LET then == Read.origin
        first == FirstToken(Max(Read.value, Floor), then)
    IN
    /\ count < MaxTokens
    /\ next = end
    /\ drawn = NoBlock
    /\ (in_tick + 1) * Block < PerTick
    /\ wal' = Append(wal, [value |-> first + Block - 1, origin |-> line])
    /\ drawn' = [first |-> first, lsn |-> Len(wal')]
    /\ in_tick' = in_tick + 1
    /\ UNCHANGED <<clock, flushed, standby, line, next, end, greatest, count, grew,
                   faults>>

\* offer_tokens() in src/term/token.c, when le_await_durable() has succeeded
Offer ==
    /\ drawn # NoBlock
    /\ Rule("token block durable before use") =>
        drawn.lsn <= flushed /\ (Sync => drawn.lsn <= standby)
    /\ next' = drawn.first
    /\ end' = drawn.first + Block
    /\ drawn' = NoBlock
    /\ UNCHANGED <<clock, wal, flushed, standby, line, in_tick, greatest, count, grew,
                   faults>>

\* take_token() in src/term/token.c
Take ==
    /\ next < end
    /\ count < MaxTokens
    /\ count' = count + 1
    /\ next' = next + 1
    /\ grew' = (grew /\ next > greatest)
    /\ greatest' = Max(greatest, next)
    /\ UNCHANGED <<clock, wal, flushed, standby, line, end, drawn, in_tick, faults>>

-----------------------------------------------------------------------------
Restart(kept) ==
    /\ faults < MaxFaults
    /\ faults' = faults + 1
    /\ wal' = SubSeq(wal, 1, kept)
    /\ flushed' = kept
    /\ next' = 0
    /\ end' = 0
    /\ drawn' = NoBlock
    /\ clock < MaxClock
    /\ clock' = clock + 1
    /\ in_tick' = 0
    /\ UNCHANGED <<standby, greatest, count, grew>>

Crash ==
    /\ Restart(flushed)
    /\ UNCHANGED line

\* The standby is promoted, and gets a standby of its own.
Promote ==
    /\ Restart(standby)
    /\ line' = line + 1

Next ==
    \/ Tick
    \/ Flush
    \/ Stream
    \/ Draw
    \/ Offer
    \/ Take
    \/ Crash
    \/ Promote

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == standby <= flushed /\ flushed <= Len(wal) /\ next <= end

\* doc/guarantees.md: "The token of each term is greater than all earlier ones of
\* the database that the server knows of, through rollback, crash, restart,
\* failover".
GrowingTokens == grew

\* src/term/token.c: "the sequence's last value is the last token that may have
\* been handed out".  With a synchronous standby, the standby knows it, too.
LastValueCovers ==
    LET known == SubSeq(wal, 1, IF Sync THEN standby ELSE flushed)
    IN next < end => \E i \in DOMAIN known : known[i].value >= end - 1

=============================================================================
