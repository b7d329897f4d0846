package leaderelection

import (
	"fmt"
	"math"
	"sync"
	"time"
)

const never = time.Duration(math.MaxInt64)

// An action is something that a machine wants to be done: a statement if it
// has a serial, and else "close", "elected", "job", "cancel", "ousted",
// "error", "told" or "end".
type action struct {
	what    string
	serial  int
	term    *Term         // the present one; of a bid, that of a lease to take again
	wait    time.Duration // for which a bid waits in the server
	version *int64        // that a follower knows
	reason  Reason
	leader  *Leader
	err     error
}

// An ask is a statement on its way.
type ask struct {
	action
	at, deadline time.Duration
	beats        int  // the job's calls of heartbeat by then
	begun        bool // it has got its connection
}

// An answer has what the statements return.
type answer struct {
	pid                   uint32
	leads                 bool
	token, version        *int64
	name, identity, value *string
}

// A way is what sessions, leases and followers do differently: the statement
// that waits for an election, whether each campaign opens a connection, the
// time from one question to the next, from one bid for a lease to the next,
// from a renewal that failed to the next, for which a confirmation is valid,
// and for which a bid waits in the server, and the deadlines of an answer and
// of a confirmation.
type way struct {
	bid                                                        string
	opens                                                      bool
	interval, between, retry, validity, round, limit, patience time.Duration
}

// A phase says where in a campaign or a term a machine is.
type phase int

const (
	stopped phase = iota
	paused
	campaigning
	confirming // elected, and not confirmed yet
	electing   // elected is called
	working    // the job runs
	ousting    // ousted is called
	leaving    // leadership is to be resigned
)

// A machine is the state machine of an elector or a follower. It is pure: step
// gets the time and what has happened, and returns what is to be done.
type machine struct {
	way
	clock    func() time.Duration
	random   func() float64
	opt      *Options
	election string

	mu                           sync.Mutex // protects what follows
	phase                        phase
	terms, confirmations, errors int64
	out                          []action
	asked                        *ask
	serial, failures, crashes    int           // crashes: failures of the job in a row
	now, until                   time.Duration // until: the end of a pause
	stopping, toldNotYet         bool
	once, ran                    bool          // whether to run the job once, and whether it has begun
	lastBid                      time.Duration // when to bid for the last time
	result                       error         // of the job that is run once
	left                         *Term         // of a lease that could not be resigned
	pid                          uint32        // of the connection
	told                         []*Leader

	term                 *Term
	over                 error         // how leadership has ended
	refused              bool          // the role may not use the token
	reason               Reason        // why the job is to stop
	due, reportAt, began time.Duration // began: when elected was called
	carried              int           // the calls of heartbeat that were told to the server
}

func newMachine(w way, election string, o *Options, clock func() time.Duration, random func() float64) *machine {
	m := &machine{way: w, election: election, opt: o, clock: clock, random: random, until: never, lastBid: never}
	m.forgetTerm()
	return m
}

// step lets time pass, and then something happen.
func (m *machine) step(now time.Duration, event func()) []action {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.out = now, nil
	m.passTime()
	event()
	m.passTime()
	return m.out
}

// wakeup returns when to call step, if nothing happens before.
func (m *machine) wakeup() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := never
	for _, t := range m.timers() {
		at = min(at, t.at)
	}
	return at
}

type timer struct {
	at  time.Duration
	due func()
}

// timers returns what is due when, in the order in which it is done.
func (m *machine) timers() []timer {
	doubt, deadline, question := never, never, never
	if m.holds() {
		doubt, question = m.term.validUntil(), m.due
	}
	if m.asked != nil {
		deadline, question = m.asked.deadline, never
	}
	return []timer{{doubt, m.doubt}, {deadline, m.giveUp}, {m.reportAt, m.reportSlow},
		{m.until, m.campaign}, {question, m.confirm}}
}

func (m *machine) passTime() {
	for i := range m.timers() {
		if t := m.timers()[i]; m.now >= t.at { // after what was due before
			t.due()
		}
	}
	if m.phase == leaving {
		m.leave()
	}
}

func (m *machine) do(a action) { m.out = append(m.out, a) }

func (m *machine) send(a action, limit time.Duration) {
	m.serial++
	a.serial = m.serial
	m.asked = &ask{action: a, at: m.now, deadline: m.now + limit}
	if m.term != nil {
		a.term, m.asked.beats = m.term, m.term.beats
	}
	m.do(a)
}

func (m *machine) close() {
	m.asked = nil
	m.do(action{what: "close"})
}

func (m *machine) report(err error) {
	m.errors++
	m.do(action{what: "error", err: err})
}

func (m *machine) onBegun(serial int) {
	if m.asked != nil && m.asked.serial == serial {
		m.asked.begun, m.asked.deadline = true, m.asked.deadline+m.asked.wait // in the server
	}
}

func (m *machine) onAnswer(serial int, a answer, err error) {
	q := m.asked
	if q == nil || q.serial != serial { // it was given up
		return
	}
	m.asked = nil
	switch {
	case err != nil:
		m.fail(q, fmt.Errorf("cannot %s: %w", q.what, err))
	case q.what == "open":
		m.pid = a.pid
		m.ask(nil)
	case q.what == "observe":
		m.answerObserve(a)
	case q.what == "bid":
		m.answerBid(q, a)
	case q.what == "confirm", q.what == "beat":
		m.answerConfirm(q, a)
	case q.what == "resign":
		yields := m.over != nil && !m.opens
		m.finish()
		if yields && m.phase == paused { // to those that bid at this interval
			m.until += m.between
		}
	}
}

func (m *machine) giveUp() {
	// %.0w wraps an error whose text would name the package within another one's
	err := fmt.Errorf("no answer within %v%.0w", m.asked.deadline-m.asked.at, ErrTimeout)
	if !m.asked.begun {
		err = fmt.Errorf("no connection within %v: if it is from the pool, none was free%.0w", m.asked.deadline-m.asked.at, ErrNoConnection)
	}
	m.onAnswer(m.asked.serial, answer{}, err)
}

func (m *machine) onBroken(err error) {
	if m.asked != nil {
		m.onAnswer(m.asked.serial, answer{}, err)
	} else {
		m.connectionLost(err)
	}
}
