package judge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"leader_election/proof/event"
)

// script writes a history by hand.  Times are in milliseconds.
type script struct {
	records []event.Record
	op      int64
}

const ms = millisecond

func (s *script) add(at int64, r event.Record) {
	r.At = at * ms
	s.records = append(s.records, r)
}

// connect gives a client a session on server 1.
func (s *script) connect(clients ...int) {
	for _, c := range clients {
		s.add(1, event.Record{Kind: event.Connect, Client: c, Session: 1, Server: 1})
	}
}

// call adds a call from one time to another.  Without an outcome there is no return.
func (s *script) call(from, to int64, r event.Record, outcome string, token int64) int64 {
	s.op++
	r.Kind, r.Op = event.Call, s.op
	if r.Session == 0 {
		r.Session = 1
	}
	if r.Election == "" && r.Elections == nil {
		r.Election = "e"
	}
	s.add(from, r)
	if outcome == "" {
		return s.op
	}
	r.Kind, r.Outcome = event.Return, outcome
	if token != 0 {
		r.Token = token
	}
	if outcome == event.Failed && r.SQLState == "" {
		r.SQLState = "55P03"
	}
	s.add(to, r)
	return s.op
}

func (s *script) try(from, to int64, client int, token int64) {
	outcome := event.True
	if token == 0 {
		outcome = event.False
	}
	s.call(from, to, event.Record{Client: client, Do: event.Try, Scope: event.Session}, outcome, token)
}

func (s *script) lease(from, to int64, client int, ttl, token int64) {
	outcome := event.True
	if token == 0 {
		outcome = event.False
	}
	s.call(from, to, event.Record{Client: client, Do: event.Lease, Scope: event.ByLease, TTL: ttl * ms}, outcome, token)
}

func (s *script) about(from, to int64, client int, do string, token int64, outcome string) int64 {
	return s.call(from, to, event.Record{Client: client, Do: do, Token: token}, outcome, 0)
}

func (s *script) renew(from, to int64, client int, ttl, token int64, outcome string) {
	s.call(from, to, event.Record{Client: client, Do: event.Renew, Scope: event.ByLease, TTL: ttl * ms, Token: token},
		outcome, 0)
}

func (s *script) fault(from, to int64, do string, server int) {
	s.add(from, event.Record{Kind: event.Fault, Do: do, Phase: "begin", Server: server})
	if do == event.PromoteStandby {
		server++
	}
	s.add(to, event.Record{Kind: event.Fault, Do: do, Phase: "end", Server: server})
}

func (s *script) row(r event.Record) {
	r.Kind = event.Row
	if r.Election == "" {
		r.Election = "e"
	}
	if r.Guard == "" {
		r.Guard = "assert"
	}
	s.add(1_000_000, r)
}

// crowd lets sessions of client 1 bid from a time on, and lead in turn from another one on; they are not answered if that
// is 0.
func (s *script) crowd(size, from, to int64) {
	for n := range int64(size) {
		s.add(1+20*n, event.Record{Kind: event.Connect, Client: 1, Session: int(n) + 1, Server: 1})
	}
	for n := range int64(size) {
		r := event.Record{Client: 1, Session: int(n) + 1, Do: event.Campaign, Waits: true, Scope: event.Session,
			Mark: event.Crowd}
		if to == 0 {
			s.call(from+n, 0, r, "", 0)
			continue
		}
		s.call(from+n, to+10*n, r, event.True, 100+n)
		s.call(to+10*n+2, to+10*n+8, event.Record{Client: 1, Session: int(n) + 1, Do: event.Resign,
			Scope: event.Session, Token: 100 + n}, event.True, 0)
	}
}

// vanish lets a leader, and a candidate that may have won, close their connections while another candidate waits, which
// is elected at a time.
func (s *script) vanish(elected int64) {
	for c := 1; c <= 3; c++ {
		s.add(1, event.Record{Kind: event.Connect, Client: c, Session: 1, Server: 1, Target: "direct"})
	}
	s.try(10, 20, 1, 100)
	s.call(30, 100, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.Unknown, 0)
	s.add(100, event.Record{Kind: event.Closed, Client: 2, Session: 1})
	s.add(100, event.Record{Kind: event.Closed, Client: 1, Session: 1})
	s.call(40, elected, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
}

// runsAnew lets a lease be shown after a restart that a term in transaction scope has followed.
func (s *script) runsAnew(end, outcome string) {
	s.connect(1, 2)
	s.lease(10, 20, 1, 100, 100)
	s.call(130, 140, event.Record{Client: 2, Do: event.TryXact, Scope: event.Transaction}, event.True, 101)
	s.call(145, 155, event.Record{Client: 2, Do: event.End, Scope: event.Transaction, Token: 101, Message: end},
		outcome, 0)
	s.fault(156, 200, event.RestartServer, 1)
	s.add(205, event.Record{Kind: event.Connect, Client: 1, Session: 2, Server: 1})
	s.call(210, 220, event.Record{Client: 1, Session: 2, Do: event.Look, Scope: event.ByLease}, event.True, 100)
}

// beatsLate lets an observer find the election vacant while a heartbeat is being committed.
func (s *script) beatsLate() {
	s.connect(1, 2)
	s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
	s.call(90, 180, event.Record{Client: 1, Do: event.Heartbeat, Scope: event.Session, Token: 100, Beat: 100 * ms},
		event.True, 0)
	s.call(30, 40, event.Record{Client: 2, Do: event.Observe, Version: 7}, event.True, 100)
	s.call(150, 160, event.Record{Client: 2, Do: event.Observe, Version: 8}, event.False, 0)
	s.call(190, 200, event.Record{Client: 2, Do: event.Observe, Version: 7}, event.True, 100)
}

// edition makes it a history of the SQL edition.
func (s *script) edition() {
	s.add(1, event.Record{Kind: event.Note, Message: event.EditionIs + "sql"})
}

// keptSnapshot lets a bid at this isolation level wait, and another one in line behind it, until the first one has its
// timeout.  The election is vacant long before.
func (s *script) keptSnapshot(isolation string) {
	s.connect(1, 2, 3)
	s.lease(10, 20, 1, 60_000, 100)
	s.call(30, 2030, event.Record{Client: 2, Do: event.WaitXact, Waits: true, Scope: event.Transaction, Timeout: 2000 * ms,
		Isolation: isolation}, event.False, 0)
	s.call(40, 2040, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
	s.about(50, 60, 1, event.Resign, 100, event.True)
}

// cross lets two sessions wait for each other.
func (s *script) cross(from, to int64) {
	for n := 1; n <= 2; n++ {
		s.add(1, event.Record{Kind: event.Connect, Client: 1, Session: n, Server: 1})
		s.call(10, 20, event.Record{Client: 1, Session: n, Do: event.Try, Scope: event.Session,
			Election: fmt.Sprintf("x/%d", n)}, event.True, int64(100+n))
	}
	s.call(from, to, event.Record{Client: 1, Session: 1, Do: event.Campaign, Waits: true, Scope: event.Session,
		Election: "x/2", Mark: event.Cross, SQLState: "40P01"}, event.Failed, 0)
	s.call(from+5, to+30, event.Record{Client: 1, Session: 2, Do: event.Campaign, Waits: true, Scope: event.Session,
		Election: "x/1", Mark: event.Cross}, event.True, 103)
	s.call(to+10, to+20, event.Record{Client: 1, Session: 1, Do: event.Resign, Scope: event.Session, Token: 101,
		Election: "x/1"}, event.True, 0)
}

// good are histories of a right server, with things that look wrong.
var good = map[string]func(*script){
	"nothing": func(*script) {},
	"terms follow each other": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.try(12, 18, 2, 0)
		s.about(30, 40, 1, event.Am, 100, event.True)
		s.about(50, 60, 1, event.Resign, 100, event.True)
		s.try(55, 58, 2, 101)
		s.about(70, 80, 1, event.Am, 100, event.False)
		s.call(85, 90, event.Record{Client: 1, Do: event.Look, Scope: event.Session}, event.True, 101)
	},
	"a bid without an answer wins": func(s *script) {
		s.connect(1, 2, 3)
		s.call(10, 0, event.Record{Client: 1, Do: event.Wait, Waits: true, Scope: event.Session}, "", 0)
		s.call(20, 30, event.Record{Client: 2, Do: event.Look}, event.True, 100)
		s.call(40, 50, event.Record{Client: 2, Do: event.Look}, event.False, 0)
		s.try(60, 70, 3, 101)
	},
	"a killed client's term ends": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 0, event.Record{Client: 1, Do: event.Am, Token: 100}, "", 0)
		s.try(31, 40, 2, 101)
	},
	"a bid that was sent during a restart wins after it": func(s *script) {
		s.connect(1, 2, 3)
		s.lease(10, 20, 2, 1000, 100)
		s.fault(100, 200, event.CrashServer, 1)
		s.call(120, 0, event.Record{Client: 3, Do: event.Depose}, "", 0)
		s.about(300, 310, 2, event.Am, 100, event.True)
		s.lease(150, 500, 1, 1000, 101)
		s.about(320, 330, 2, event.Resign, 100, event.True)
		s.about(510, 520, 1, event.Am, 101, event.True)
	},
	"a canceled bid has won": func(s *script) {
		s.connect(1, 2)
		s.call(10, 30, event.Record{Client: 1, Do: event.Wait, Scope: event.Session, SQLState: "57014"},
			event.Unknown, 0)
		s.call(32, 34, event.Record{Client: 2, Do: event.Look, Scope: event.Session}, event.True, 100)
		s.about(35, 40, 1, event.Am, 0, event.True)
		s.try(42, 44, 1, 100)
		s.about(45, 50, 1, event.Resign, 0, event.True)
		s.try(55, 60, 2, 101)
	},
	"an unknown resignation, and the term goes on": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.call(30, 0, event.Record{Client: 1, Do: event.Resign, Token: 100}, "", 0)
		s.call(40, 50, event.Record{Client: 2, Do: event.Am, Scope: event.ByLease, Token: 100}, event.True, 0)
		s.lease(60, 70, 2, 500, 101)
	},
	"a lease is renewed, expires and is followed": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.renew(80, 90, 1, 100, 100, event.True)
		s.lease(170, 175, 2, 100, 0)
		s.lease(170, 181, 2, 100, 101)
		s.renew(190, 200, 1, 100, 100, event.False)
	},
	"a renewal shortens a lease": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 1000, 100)
		s.renew(30, 40, 1, 100, 100, event.True)
		s.lease(129, 131, 2, 100, 101)
	},
	"an unknown renewal shortens a lease": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 1000, 100)
		s.renew(30, 0, 1, 100, 100, "")
		s.lease(129, 131, 2, 100, 101)
	},
	"a renewal that comes too late is a new lease": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.call(130, 140, event.Record{Client: 1, Do: event.Renew, Scope: event.ByLease, TTL: 100 * ms, Token: 100,
			Identity: "client 1"}, event.True, 101)
		s.renew(150, 160, 1, 100, 101, event.True)
	},
	"a lease runs over a restart": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(100, 200, event.CrashServer, 1)
		s.add(210, event.Record{Kind: event.Connect, Client: 1, Session: 2, Server: 1})
		s.call(220, 230, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 500 * ms, Token: 100}, event.True, 0)
		s.call(300, 740, event.Record{Client: 2, Session: 2, Do: event.Lease, Waits: true, TTL: 500 * ms}, event.True,
			101)
	},
	"an expired lease runs once more after a restart": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.call(130, 140, event.Record{Client: 1, Do: event.Am, Scope: event.ByLease, Token: 100}, event.False, 0)
		s.call(150, 160, event.Record{Client: 2, Do: event.Look}, event.False, 0)
		s.fault(200, 300, event.RestartServer, 1)
		s.call(310, 320, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 100 * ms, Token: 100}, event.True, 0)
		s.call(325, 430, event.Record{Client: 2, Session: 2, Do: event.Lease, Waits: true, TTL: 100 * ms}, event.True,
			101)
	},
	"a lease that was not acknowledged is seen, and lost in a crash": func(s *script) {
		s.connect(1, 2)
		s.call(10, 0, event.Record{Client: 1, Do: event.Lease, Scope: event.ByLease, TTL: 500 * ms}, "", 0)
		s.call(20, 30, event.Record{Client: 2, Do: event.Look, Scope: event.ByLease}, event.True, 100)
		s.fault(40, 80, event.CrashServer, 1)
		s.call(90, 100, event.Record{Client: 2, Session: 2, Do: event.Look}, event.False, 0)
		s.call(110, 120, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 200)
	},
	"a lease that was not acknowledged is seen, and runs on after a crash": func(s *script) {
		s.connect(1, 2)
		s.call(10, 0, event.Record{Client: 1, Do: event.Lease, Scope: event.ByLease, TTL: 500 * ms}, "", 0)
		s.call(20, 30, event.Record{Client: 2, Do: event.Look, Scope: event.ByLease}, event.True, 100)
		s.fault(40, 80, event.CrashServer, 1)
		s.call(90, 100, event.Record{Client: 2, Session: 2, Do: event.Look, Scope: event.ByLease}, event.True, 100)
		s.call(110, 700, event.Record{Client: 2, Session: 2, Do: event.Wait, Waits: true, Scope: event.Session},
			event.True, 101)
	},
	"a crowd is elected after the faults": func(s *script) {
		s.crowd(40, 100, 700)
		s.add(90, event.Record{Kind: event.Note, Message: event.FaultsEnd})
	},
	"a killed crowd is elected no more": func(s *script) {
		s.crowd(3, 100, 0)
		s.add(150, event.Record{Kind: event.Fault, Do: event.KillClient, Client: 1})
		s.add(90, event.Record{Kind: event.Note, Message: event.FaultsEnd})
		s.connect(2)
		s.call(100, 30_000, event.Record{Client: 2, Do: event.Look, Election: "other"}, event.False, 0)
	},
	"a server finds after a while that a leader has gone": func(s *script) {
		s.vanish(1900)
	},
	"a bid of the SQL edition does not see the vacancy in its snapshot": func(s *script) {
		s.edition()
		s.keptSnapshot("serializable")
	},
	"a lease of the SQL edition runs anew, as its successor was rolled back": func(s *script) {
		s.edition()
		s.runsAnew("COMMIT", event.Unknown)
	},
	"a lease of the SQL edition runs anew, and an earlier bid of that session was canceled": func(s *script) {
		s.edition()
		s.runsAnew("ROLLBACK", event.True)
		s.call(110, 120, event.Record{Client: 2, Do: event.Wait, Scope: event.Session}, event.Unknown, 0)
		s.call(122, 125, event.Record{Client: 2, Do: event.Am}, event.False, 0)
	},
	"a heartbeat of the SQL edition is committed late": func(s *script) {
		s.edition()
		s.beatsLate()
	},
	"a deadlock is found": func(s *script) {
		s.cross(50, 1070)
	},
	"a stopped server finds a deadlock late": func(s *script) {
		s.fault(500, 4000, event.StopBackend, 1)
		s.cross(50, 5000)
	},
	"a lease is lost in a failover, and a session leads": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(100, 110, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 200)
		s.add(112, event.Record{Kind: event.Connect, Client: 1, Session: 2, Server: 2})
		s.call(115, 120, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 500 * ms, Token: 100}, event.False,
			0)
	},
	"a lease runs once more beside its successor after a failover": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.about(22, 25, 1, event.Resign, 100, event.True)
		s.lease(26, 28, 2, 500, 101)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 1, Session: 2, Server: 2})
		s.call(100, 110, event.Record{Client: 1, Session: 2, Do: event.Am, Scope: event.ByLease, Token: 100},
			event.True, 0)
		s.add(91, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(120, 130, event.Record{Client: 2, Session: 2, Do: event.Renew, TTL: 500 * ms, Token: 101}, event.False,
			0)
	},
	"a lease is taken on, and one is waited for": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 1, Session: 2, Server: 2})
		s.call(100, 110, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 100 * ms, Token: 100}, event.True, 0)
		s.add(91, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(120, 1000, event.Record{Client: 2, Session: 2, Do: event.Lease, Waits: true, TTL: 500 * ms},
			event.True, 200)
	},
	"a call through the pooler is answered by another server": func(s *script) {
		s.connect(2)
		s.add(1, event.Record{Kind: event.Connect, Client: 1, Session: 1, Target: "pooler transaction", Server: 1})
		s.lease(10, 20, 1, 5000, 100)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.call(90, 100, event.Record{Client: 1, Do: event.Am, Scope: event.ByLease, Token: 100}, event.False, 0)
		s.add(110, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(120, 130, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 200)
	},
	"a bid for many wins without an answer": func(s *script) {
		s.connect(1, 2)
		s.call(10, 0, event.Record{Client: 1, Do: event.Many, Elections: []string{"e", "f"}, Waits: true,
			Scope: event.Session}, "", 0)
		s.call(20, 30, event.Record{Client: 2, Do: event.Look, Election: "f"}, event.True, 100)
		s.try(40, 50, 2, 101)
	},
	"a bid for many waits behind a leader": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.op++
		r := event.Record{Kind: event.Call, Client: 2, Session: 1, Op: s.op, Do: event.Many, Elections: []string{"e",
			"f"},
			Waits: true, Scope: event.Session}
		s.add(30, r)
		r.Kind, r.Outcome, r.Election, r.Token = event.Return, event.True, "e", 101
		s.add(90, r)
		s.about(50, 60, 1, event.Resign, 100, event.True)
		s.about(95, 98, 2, event.Am, 101, event.True)
	},
	"a transaction commits while its term is resigned": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		op := s.call(21, 60, event.Record{Client: 1, Do: event.Write, Token: 100, Sent: 35 * ms}, event.True, 0)
		s.about(30, 40, 2, event.Resign, 100, event.True)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	},
	"a term in transaction scope": func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.TryXact, Scope: event.Transaction}, event.True, 100)
		op := s.call(21, 40, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.about(30, 39, 1, event.End, 100, event.True)
		s.try(35, 45, 2, 101)
		s.about(50, 55, 1, event.Am, 100, event.False)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	},
	"an error ends a term in transaction scope": func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.TryXact, Scope: event.Transaction}, event.True, 100)
		s.call(21, 22, event.Record{Client: 1, Do: event.Write, Token: 100, SQLState: "40001"}, event.Failed, 0)
		s.try(23, 24, 2, 101)
		s.about(30, 39, 1, event.End, 100, event.True)
	},
	"both scopes": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(21, 22, event.Record{Client: 1, Do: event.TryXact, Scope: event.Transaction}, event.True, 100)
		s.about(25, 26, 1, event.Resign, 100, event.True)
		s.about(27, 28, 1, event.Am, 100, event.True)
		s.about(30, 35, 1, event.End, 100, event.True)
		s.try(31, 40, 2, 101)
	},
	"a reset ends what the session leads": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(12, 22, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Election: "f"}, event.True, 101)
		s.about(30, 40, 1, event.Discard, 100, event.True)
		s.try(35, 45, 2, 102)
		s.call(46, 48, event.Record{Client: 2, Do: event.Try, Scope: event.Session, Election: "f"}, event.True, 103)
		s.about(50, 60, 1, event.Am, 100, event.False)
	},
	"a heartbeat is missing": func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
		s.about(50, 60, 1, event.Heartbeat, 100, event.True)
		s.call(40, 155, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		s.call(170, 180, event.Record{Client: 1, Do: event.Am, SQLState: "LE004"}, event.Failed, 0)
	},
	"a late heartbeat that was sent in time": func(s *script) {
		s.connect(1)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
		s.call(50, 0, event.Record{Client: 1, Session: 2, Do: event.Heartbeat, Token: 100}, "", 0)
		s.about(140, 145, 1, event.Heartbeat, 100, event.True)
		s.about(260, 265, 1, event.Heartbeat, 100, event.False)
		s.try(270, 275, 1, 101)
	},
	"a deposed leader": func(s *script) {
		s.connect(1, 2, 3)
		s.lease(10, 20, 1, 5000, 100)
		s.call(30, 50, event.Record{Client: 3, Do: event.Depose}, event.True, 0)
		s.lease(35, 45, 2, 5000, 101)
		s.renew(60, 70, 1, 5000, 100, event.False)
	},
	"a prepared write": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 5000, 100)
		op := s.call(30, 400, event.Record{Client: 1, Do: event.Write, Token: 100, Prepared: true}, event.True, 0)
		s.call(50, 60, event.Record{Client: 1, Session: 2, Do: event.Resign, Token: 100}, event.True, 0)
		s.call(70, 450, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		late := s.call(452, 460, event.Record{Client: 2, Do: event.Write, Token: 101}, event.True, 0)
		s.call(470, 480, event.Record{Client: 1, Do: event.Write, Token: 100, SQLState: "LE001"}, event.Failed, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
		s.row(event.Record{Server: 1, Order: 2, Token: 101, Client: 2, Op: late})
	},
	"rows that a failover has lost": func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		a := s.call(21, 22, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		b := s.call(23, 24, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: a})
		s.row(event.Record{Server: 1, Order: 2, Token: 100, Client: 1, Op: b})
		s.row(event.Record{Server: 2, Phase: event.Survived, Token: 100, Client: 1, Op: a})
	},
	"jobs grow on each server": func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		job := func(server int, order, op int64, phase, due string) {
			s.row(event.Record{Server: server, Order: order, Token: 100, Client: 1, Op: op, Guard: "once", Phase: phase,
				Message: due})
		}
		a := s.call(21, 22, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		b := s.call(23, 24, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Unknown, 0)
		job(1, 1, a, "", "2025-01-01 12:00:00.25+00")
		job(1, 2, b, "", "2025-01-01 12:00:00.5+00")
		job(2, 0, a, event.Survived, "2025-01-01 12:00:00.25+00")
		c := s.call(200, 210, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Unknown, 0)
		job(2, 1, c, "", "2025-01-01 12:00:00.5+00")
	},
	"a frozen candidate is not in line": func(s *script) {
		s.connect(1, 3)
		s.add(1, event.Record{Kind: event.Connect, Client: 2, Session: 1, Target: "proxy", Server: 1})
		s.try(10, 20, 1, 100)
		s.fault(25, 1500, event.FreezeProxy, 1)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 102)
		s.call(1000, 2010, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		s.about(2000, 2010, 1, event.Resign, 100, event.True)
		s.about(2900, 2990, 3, event.Resign, 101, event.True)
	},
	"a candidate's timeout comes early, and its answer late": func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 100)
		s.call(1100, 2000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session,
			Timeout: 2000 * ms},
			event.False, 0)
		s.add(1420, event.Record{Kind: event.Fault, Do: event.SetClock, Server: 1})
		s.fault(1440, 1990, event.StopPooler, 1)
		s.about(1500, 1510, 1, event.Resign, 100, event.True)
		s.try(1520, 1530, 3, 101)
	},
	"the clock is set, and a candidate with a timeout lines up again": func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 100)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session,
			Timeout: 4000 * ms}, event.True, 102)
		s.add(900, event.Record{Kind: event.Fault, Do: event.SetClock, Server: 1})
		s.call(1000, 2010, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		s.about(2000, 2010, 1, event.Resign, 100, event.True)
		s.about(2900, 2990, 3, event.Resign, 101, event.True)
	},
	"a bid for many was there first": func(s *script) {
		s.connect(1, 2, 3)
		s.call(1, 2, event.Record{Client: 3, Do: event.Try, Scope: event.Session, Election: "f"}, event.True, 98)
		s.try(2, 3, 3, 99)
		s.about(20, 1990, 3, event.Resign, 99, event.True)
		s.op++
		r := event.Record{Kind: event.Call, Client: 1, Session: 1, Op: s.op, Do: event.Many, Elections: []string{"e",
			"f"},
			Waits: true, Scope: event.Session}
		s.add(10, r)
		r.Kind, r.Outcome, r.Election, r.Token = event.Return, event.True, "e", 100
		s.add(2000, r)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		s.about(2900, 2990, 1, event.Resign, 100, event.True)
	},
	"a guarded transaction keeps out a candidate": func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 5000, 100)
		s.call(30, 0, event.Record{Client: 1, Do: event.Write, Token: 100}, "", 0)
		s.call(50, 60, event.Record{Client: 1, Session: 2, Do: event.Resign, Token: 100}, event.True, 0)
		s.call(70, 5000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.False, 0)
	},
	"observers": func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		look := event.Record{Client: 2, Do: event.Observe, After: 7, Version: 7, Timeout: 50 * ms}
		s.call(30, 85, look, event.True, 100)
		s.about(90, 100, 1, event.Resign, 100, event.True)
		look.Version = 8
		s.call(86, 95, look, event.False, 0)
		s.try(120, 130, 1, 101)
		look.After, look.Version = 8, 9
		s.call(118, 140, look, event.True, 101)
	},
	"a final bid": func(s *script) {
		s.connect(1)
		s.connect(2)
		s.try(2, 3, 2, 99)
		s.about(4900, 4905, 2, event.Resign, 99, event.True)
		s.call(10, 5000, event.Record{Client: 1, Do: event.Wait, Waits: true, Scope: event.Session, Mark: event.Final},
			event.True, 100)
	},
	"the clock is set and a failover loses tokens": func(s *script) {
		s.connect(1)
		s.try(10, 20, 1, 100)
		s.fault(25, 26, event.SetClock, 1)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 2, Session: 1, Server: 2})
		s.call(100, 110, event.Record{Client: 2, Do: event.Try, Scope: event.Session, Election: "f"}, event.True, 90)
	},
	"published loops": func(s *script) {
		believe := func(at int64, client int, is string) {
			s.add(at, event.Record{Kind: event.Return, Client: client, Do: event.Published, Election: "poll 1",
				Outcome: is})
		}
		believe(10, 1, event.True)
		believe(1000, 1, event.False)
		believe(950, 2, event.True)
		s.add(5000, event.Record{Kind: event.Fault, Do: event.KillClient, Client: 2})
		believe(9000, 1, event.True)
		believe(60_000, 1, event.False)
	},
}

// bad are histories that no right server has, with a part of the name of each check that must find it.
var bad = map[string]struct {
	checks []string
	write  func(*script)
}{
	"two leaders": {[]string{"leaders", "linearizable", "end: session"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.try(30, 40, 2, 101)
		s.about(50, 60, 1, event.Am, 100, event.True)
	}},
	"a session loses its term without a reason": {[]string{"linearizable"}, func(s *script) {
		s.connect(1)
		s.try(10, 20, 1, 100)
		s.about(50, 60, 1, event.Am, 100, event.False)
	}},
	"a term ends while its session lives": {[]string{"end: session", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.try(30, 40, 2, 101)
		s.call(50, 60, event.Record{Client: 1, Do: event.Try, Election: "f"}, event.False, 0)
	}},
	"it leads after its resignation": {[]string{"linearizable"}, func(s *script) {
		s.connect(1)
		s.try(10, 20, 1, 100)
		s.about(30, 40, 1, event.Resign, 100, event.True)
		s.about(50, 60, 1, event.Am, 100, event.True)
	}},
	"it leads after a reset": {[]string{"linearizable"}, func(s *script) {
		s.connect(1)
		s.try(10, 20, 1, 100)
		s.about(30, 40, 1, event.Discard, 100, event.True)
		s.about(50, 60, 1, event.Am, 100, event.True)
	}},
	"it leads after its transaction": {[]string{"linearizable"}, func(s *script) {
		s.connect(1)
		s.call(10, 20, event.Record{Client: 1, Do: event.TryXact, Scope: event.Transaction}, event.True, 100)
		s.about(30, 40, 1, event.End, 100, event.True)
		s.about(50, 60, 1, event.Am, 100, event.True)
	}},
	"a lease is followed too early": {[]string{"end: lease", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.renew(80, 90, 1, 100, 100, event.True)
		s.lease(170, 175, 2, 100, 101)
	}},
	"a lease is lost by a restart": {[]string{"end: lease", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(30, 80, event.CrashServer, 1)
		s.call(100, 110, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 101)
	}},
	"a lease does not run for its ttl after a restart": {[]string{"end: lease", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(400, 450, event.CrashServer, 1)
		s.call(600, 610, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 101)
	}},
	"a resigned lease comes back after a restart": {[]string{"linearizable"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 500, 100)
		s.about(22, 25, 1, event.Resign, 100, event.True)
		s.fault(30, 80, event.CrashServer, 1)
		s.call(100, 110, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 500 * ms, Token: 100}, event.True, 0)
	}},
	"a replaced lease comes back after a restart": {[]string{"linearizable", "leaders"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.try(130, 140, 2, 101)
		s.fault(150, 180, event.CrashServer, 1)
		s.call(200, 210, event.Record{Client: 1, Session: 2, Do: event.Renew, TTL: 100 * ms, Token: 100}, event.True, 0)
	}},
	"an expired lease is renewed": {[]string{"expired"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 100, 100)
		s.renew(130, 140, 1, 100, 100, event.True)
	}},
	"a promoted server grants a lease too early": {[]string{"failover"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(100, 110, event.Record{Client: 2, Session: 2, Do: event.Lease, Scope: event.ByLease, TTL: 500 * ms},
			event.True, 200)
	}},
	"a promoted server ignores a lease that it has received": {[]string{"failover"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		op := s.call(21, 22, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
		s.row(event.Record{Server: 2, Phase: event.Survived, Token: 100, Client: 1, Op: op})
		s.fault(30, 80, event.PromoteStandby, 1)
		s.add(90, event.Record{Kind: event.Connect, Client: 2, Session: 2, Server: 2})
		s.call(100, 110, event.Record{Client: 2, Session: 2, Do: event.Try, Scope: event.Session}, event.True, 200)
	}},
	"a transaction commits after a resignation": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		op := s.call(21, 60, event.Record{Client: 1, Do: event.Write, Token: 100, Sent: 50 * ms}, event.True, 0)
		s.about(30, 40, 2, event.Resign, 100, event.True)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"tokens fall": {[]string{"tokens"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Try, Election: "f"}, event.True, 99)
	}},
	"a token is given twice": {[]string{"tokens"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(15, 25, event.Record{Client: 2, Do: event.Try, Election: "f"}, event.True, 100)
	}},
	"two bidders have a token": {[]string{"tokens"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.try(15, 25, 2, 100)
	}},
	"a heartbeat is ignored": {[]string{"end: heartbeat", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
		s.about(50, 60, 1, event.Heartbeat, 100, event.True)
		s.try(140, 145, 2, 101)
		s.about(160, 170, 1, event.Am, 100, event.False)
	}},
	"a missing heartbeat is ignored": {[]string{"late heartbeat"}, func(s *script) {
		s.connect(1)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
		s.about(50, 60, 1, event.Heartbeat, 100, event.True)
		s.about(165, 170, 1, event.Am, 100, event.True)
	}},
	"an old term writes": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		s.lease(130, 140, 2, 100, 101)
		op := s.call(150, 160, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Unknown, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"a term begins while a transaction is open": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		op := s.call(30, 160, event.Record{Client: 1, Do: event.Write, Token: 100, Sent: 150 * ms}, event.Unknown, 0)
		s.lease(130, 140, 2, 100, 101)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"a transaction commits after its lease": {[]string{"rows"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 100, 100)
		op := s.call(30, 160, event.Record{Client: 1, Do: event.Write, Token: 100, Sent: 150 * ms}, event.True, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"a transaction commits after a denied renewal": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 500, 100)
		op := s.call(30, 160, event.Record{Client: 1, Do: event.Write, Token: 100, Sent: 150 * ms}, event.True, 0)
		s.call(40, 50, event.Record{Client: 2, Do: event.Depose}, event.True, 0)
		s.renew(100, 110, 2, 500, 100, event.False)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"a transaction commits after a reset": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		op := s.call(30, 160, event.Record{Client: 2, Do: event.Write, Token: 100, Sent: 150 * ms}, event.True, 0)
		s.about(40, 50, 1, event.Discard, 100, event.True)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 2, Op: op})
	}},
	"rows are in the wrong order": {[]string{"rows"}, func(s *script) {
		s.connect(1, 2)
		s.lease(10, 20, 1, 100, 100)
		old := s.call(100, 160, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Unknown, 0)
		s.lease(130, 140, 2, 100, 101)
		op := s.call(145, 150, event.Record{Client: 2, Do: event.Write, Token: 101}, event.True, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 101, Client: 2, Op: op})
		s.row(event.Record{Server: 1, Order: 2, Token: 100, Client: 1, Op: old})
	}},
	"a failed write is there": {[]string{"rows"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 100, 100)
		op := s.call(30, 40, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Failed, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"an acknowledged write is lost": {[]string{"rows"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 100, 100)
		op := s.call(30, 40, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.call(50, 60, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op})
	}},
	"a job is done twice": {[]string{"jobs"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		for order := range int64(2) {
			op := s.call(30+10*order, 35+10*order, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
			s.row(event.Record{Server: 1, Order: order + 1, Token: 100, Client: 1, Op: op, Guard: "once",
				Message: "2025-01-01 12:00:00+00"})
		}
	}},
	"a job is refused that was not done": {[]string{"jobs"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		op := s.call(30, 35, event.Record{Client: 1, Do: event.Write, Token: 100}, event.True, 0)
		s.row(event.Record{Server: 1, Order: 1, Token: 100, Client: 1, Op: op, Guard: "once",
			Message: "2025-01-01 12:00:00+00"})
		s.call(40, 45, event.Record{Client: 1, Do: event.Write, Token: 100, Mark: event.Done,
			Message: "2025-01-01 12:00:01+00"}, event.False, 0)
	}},
	"a job that has survived is done again": {[]string{"jobs"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		for order, phase := range []string{event.Survived, ""} {
			at := int64(30 + 10*order)
			op := s.call(at, at+5, event.Record{Client: 1, Do: event.Write, Token: 100}, event.Unknown, 0)
			s.row(event.Record{Server: 2, Order: int64(order), Token: 100, Client: 1, Op: op, Guard: "once",
				Phase:   phase,
				Message: "2025-01-01 12:00:00+00"})
		}
	}},
	"a candidate is overtaken": {[]string{"order"}, func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 100)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 102)
		s.call(1000, 2010, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
		s.about(2000, 2010, 1, event.Resign, 100, event.True)
		s.about(2900, 2990, 3, event.Resign, 101, event.True)
	}},
	"a bid that does not wait overtakes": {[]string{"order"}, func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 100)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session, Timeout: 2970 * ms},
			event.False, 0)
		s.about(2000, 2010, 1, event.Resign, 100, event.True)
		s.try(2005, 2012, 3, 101)
	}},
	"a bid for many overtakes": {[]string{"order"}, func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 100)
		s.op++
		r := event.Record{Kind: event.Call, Client: 3, Session: 1, Op: s.op, Do: event.Many, Elections: []string{"e",
			"f"},
			Waits: true, Scope: event.Session}
		s.add(15, r)
		r.Kind, r.Outcome, r.Election, r.Token = event.Return, event.True, "e", 101
		s.add(2000, r)
		s.call(30, 3000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 102)
		s.about(1500, 1510, 1, event.Am, 100, event.True)
		s.about(1900, 1990, 1, event.Resign, 100, event.True)
		s.about(2900, 2990, 3, event.Resign, 101, event.True)
	}},
	"a candidate for many is not woken": {[]string{"wake-ups"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 9000, event.Record{Client: 2, Do: event.Many, Elections: []string{"e", "f"}, Waits: true,
			Scope: event.Session}, event.False, 0)
		s.about(40, 50, 1, event.Resign, 100, event.True)
	}},
	"a candidate is not woken after a fault": {[]string{"wake-ups"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 60_000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.False, 0)
		s.about(40, 50, 1, event.Resign, 100, event.True)
		s.fault(100, 200, event.RestartPooler, 1)
		s.fault(300, 400, event.Vacuum, 1)
	}},
	"a candidate is not woken": {[]string{"wake-ups"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 2000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 102)
		s.about(40, 50, 1, event.Resign, 100, event.True)
	}},
	"a lease of the SQL edition runs anew beside its successor": {[]string{"leaders", "linearizable", "observers"}, func(s *script) {
		s.edition()
		s.runsAnew("COMMIT", event.True)
	}},
	"a term of the extension runs again": {[]string{"linearizable", "observers"}, func(s *script) {
		s.beatsLate()
	}},
	"the extension does not see a vacancy": {[]string{"wake-ups"}, func(s *script) {
		s.keptSnapshot("serializable")
	}},
	"a bid of the SQL edition does not see the vacancy": {[]string{"wake-ups"}, func(s *script) {
		s.edition()
		s.keptSnapshot("read committed")
	}},
	"a candidate sleeps after a bid with a snapshot has ended": {[]string{"wake-ups"}, func(s *script) {
		s.edition()
		s.keptSnapshot("repeatable read")
		s.call(70, 5000, event.Record{Client: 1, Do: event.Wait, Waits: true, Scope: event.Session}, event.False, 0)
		s.about(2050, 2060, 3, event.Resign, 101, event.True)
	}},
	"a silent leader keeps out a candidate": {[]string{"wake-ups"}, func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Beat: 100 * ms}, event.True, 100)
		s.call(30, 2000, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.False, 0)
	}},
	"a final bid is not elected": {[]string{"starvation"}, func(s *script) {
		s.connect(1)
		s.call(10, 9000, event.Record{Client: 1, Do: event.Wait, Waits: true, Mark: event.Final}, event.False, 0)
	}},
	"a bid ignores its timeout": {[]string{"timeouts"}, func(s *script) {
		s.connect(1, 2)
		s.try(2, 3, 2, 100)
		s.call(10, 6000, event.Record{Client: 1, Do: event.Wait, Waits: true, Timeout: 500 * ms}, event.False, 0)
	}},
	"a shortened lease leads on": {[]string{"expired lease"}, func(s *script) {
		s.connect(1)
		s.lease(10, 20, 1, 5000, 100)
		s.renew(30, 40, 1, 100, 100, event.True)
		s.about(300, 310, 1, event.Am, 100, event.True)
	}},
	"a final bid takes long": {[]string{"starvation"}, func(s *script) {
		s.connect(1)
		s.call(10, 11_000, event.Record{Client: 1, Do: event.Wait, Waits: true, Mark: event.Final}, event.True, 100)
	}},
	"one of a crowd is forgotten": {[]string{"starvation"}, func(s *script) {
		s.crowd(3, 100, 0)
		s.add(90, event.Record{Kind: event.Note, Message: event.FaultsEnd})
		s.connect(2)
		s.call(100, 30_000, event.Record{Client: 2, Do: event.Look, Election: "other"}, event.False, 0)
	}},
	"one of a crowd is elected late": {[]string{"starvation"}, func(s *script) {
		s.crowd(3, 100, 13_000)
		s.add(90, event.Record{Kind: event.Note, Message: event.FaultsEnd})
	}},
	"a crowd waits for an election that is vacant": {[]string{"wake-ups"}, func(s *script) {
		s.connect(2)
		s.try(10, 20, 2, 99)
		s.about(600, 610, 2, event.Resign, 99, event.True)
		s.crowd(10, 100, 1500)
	}},
	"a candidate sleeps after the connection of the leader has closed": {[]string{"wake-ups"}, func(s *script) {
		s.vanish(2300)
	}},
	"a candidate sleeps after a resignation that was answered late": {[]string{"wake-ups"}, func(s *script) {
		s.connect(1, 2, 3)
		s.try(10, 20, 1, 99)
		s.call(25, 105, event.Record{Client: 2, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 100)
		s.about(100, 110, 1, event.Resign, 99, event.True)
		s.about(120, 130, 2, event.Resign, 100, event.True)
		s.call(30, 900, event.Record{Client: 3, Do: event.Wait, Waits: true, Scope: event.Session}, event.True, 101)
	}},
	"a session that holds nothing is in a deadlock": {[]string{"deadlocks"}, func(s *script) {
		s.connect(1)
		s.call(10, 1010, event.Record{Client: 1, Do: event.Campaign, Waits: true, Mark: event.Crowd, SQLState: "40P01"},
			event.Failed, 0)
	}},
	"a deadlock is not found": {[]string{"deadlocks"}, func(s *script) {
		s.cross(50, 5000)
	}},
	"an observer returns what it was passed": {[]string{"observers"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 60, event.Record{Client: 2, Do: event.Observe, After: 7, Version: 7, Timeout: 50 * ms}, event.True, 100)
	}},
	"a version stands for two states": {[]string{"observers"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Observe, Version: 7}, event.True, 100)
		s.about(50, 60, 1, event.Resign, 100, event.True)
		s.call(70, 80, event.Record{Client: 2, Do: event.Observe, Version: 7}, event.False, 0)
	}},
	"a term is shown after its end": {[]string{"observers", "linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Observe, Version: 7}, event.True, 100)
		s.call(50, 60, event.Record{Client: 2, Do: event.Observe, Version: 8}, event.False, 0)
		s.call(70, 80, event.Record{Client: 2, Do: event.Look}, event.True, 100)
	}},
	"an old leader is shown": {[]string{"observers", "linearizable", "leaders"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.about(30, 40, 1, event.Resign, 100, event.True)
		s.try(50, 60, 1, 101)
		s.call(70, 80, event.Record{Client: 2, Do: event.Look}, event.True, 100)
	}},
	"a leader is not shown": {[]string{"linearizable"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Look}, event.False, 0)
		s.about(50, 60, 1, event.Am, 100, event.True)
	}},
	"one bid wins two terms": {[]string{"observers"}, func(s *script) {
		s.connect(1, 2)
		s.call(10, 0, event.Record{Client: 1, Do: event.Wait, Waits: true, Scope: event.Session}, "", 0)
		s.call(20, 30, event.Record{Client: 2, Do: event.Look}, event.True, 100)
		s.call(40, 50, event.Record{Client: 2, Do: event.Look}, event.True, 101)
	}},
	"another leader is shown": {[]string{"observers"}, func(s *script) {
		s.connect(1, 2)
		s.call(10, 20, event.Record{Client: 1, Do: event.Try, Scope: event.Session, Identity: "a"}, event.True, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Look, Scope: event.Session, Identity: "b"}, event.True, 100)
	}},
	"a token comes from nowhere": {[]string{"observers"}, func(s *script) {
		s.connect(1, 2)
		s.try(10, 20, 1, 100)
		s.call(30, 40, event.Record{Client: 2, Do: event.Look}, event.True, 99)
	}},
	"a session leads without a bid": {[]string{"observers"}, func(s *script) {
		s.connect(1)
		s.about(30, 40, 1, event.Am, 0, event.True)
	}},
	"a problem": {[]string{"server log"}, func(s *script) {
		s.add(10, event.Record{Kind: event.Problem, Do: "server log", Message: "PANIC"})
	}},
	"two published leaders": {[]string{"published"}, func(s *script) {
		for c := 1; c <= 2; c++ {
			s.add(int64(1000*c), event.Record{Kind: event.Return, Client: c, Do: event.Published, Election: "x",
				Outcome: event.True})
		}
		s.add(5000, event.Record{Kind: event.Closed, Client: 1})
	}},
	"no published leader": {[]string{"published"}, func(s *script) {
		s.add(1, event.Record{Kind: event.Note, Client: 1, Message: "poll begins"})
		for at, is := range map[int64]string{1000: event.True, 2000: event.False, 30_000: event.True} {
			s.add(at, event.Record{Kind: event.Return, Client: 1, Do: event.Published, Election: "x", Outcome: is})
		}
	}},
}

func judgeScript(t *testing.T, write func(*script)) (*Verdict, string) {
	s := &script{}
	write(s)
	dir := t.TempDir()
	return Judge(s.records, dir), dir
}

func TestGood(t *testing.T) {
	for name, write := range good {
		t.Run(name, func(t *testing.T) {
			v, _ := judgeScript(t, write)
			for _, x := range v.Violations {
				t.Errorf("%s: %s", x.Check, x.Message)
			}
			if n := v.Counts["linear"]["unknown"]; n > 0 {
				t.Errorf("%d unknown", n)
			}
		})
	}
}

func TestBad(t *testing.T) {
	for name, history := range bad {
		t.Run(name, func(t *testing.T) {
			v, dir := judgeScript(t, history.write)
			var found []string
			for _, x := range v.Violations {
				found = append(found, x.Check)
				if _, err := os.Stat(x.File); err != nil {
					t.Error(err)
				}
				if x.Check == "linearizable" && !strings.HasPrefix(x.Drawing, dir) {
					t.Errorf("there is no drawing: %q", x.Drawing)
				}
			}
			for _, check := range history.checks {
				if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, check) }) {
					t.Errorf("%q has not found it, but %q", check, found)
				}
			}
		})
	}
}

func TestReport(t *testing.T) {
	v, dir := judgeScript(t, bad["two leaders"].write)
	var text strings.Builder
	Report(v, &text)
	for _, want := range []string{"VIOLATION", "linear: illegal 1", filepath.Join(dir, "violation-001")} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &text)
		}
	}
	fmt.Fprintln(os.Stderr, text.String())
}
