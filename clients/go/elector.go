package leaderelection

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
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

var states = map[phase]State{stopped: StateStopped, paused: StatePaused, campaigning: StateWaiting, confirming: StateWaiting, electing: StateLeading, working: StateLeading}

var calls = map[phase]string{electing: "elected", working: "job", ousting: "ousted"}

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

func (m *machine) forgetTerm() {
	m.term, m.over, m.refused, m.reason, m.carried = nil, nil, false, "", 0
	m.due, m.reportAt, m.began = never, never, never
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

func (m *machine) state() State {
	if m.reason != "" {
		return StateStopping
	}
	return cmp.Or(states[m.phase], StateStopping)
}

func (m *machine) health() Health {
	switch {
	case m.phase == stopped:
		return HealthStopped
	case m.failures > 0 || m.over != nil || m.phase > confirming && m.clock() >= m.term.validUntil():
		return HealthInDoubt
	case m.phase > confirming:
		return HealthLeading
	}
	return HealthWaiting
}

// holds returns whether leadership is to be confirmed.
func (m *machine) holds() bool {
	return m.phase >= electing && m.phase <= ousting && m.over == nil
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

// What happens to statements

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

func (m *machine) fail(q *ask, err error) {
	m.refused = m.refused || q.begun && serverError(err).Code == "42501"
	switch {
	case m.phase <= confirming:
		m.failAttempt(q, err)
	case q.what == "resign", m.opens && m.phase == leaving:
		m.report(err)
		term := m.term
		if m.opens || m.refused {
			term = nil
		}
		m.finish()
		m.left = term
	case m.opens:
		m.connectionLost(err)
	default:
		m.report(err)
		m.close()
		m.due = m.now + m.retry
	}
}

// The campaign

func (m *machine) onTry(wait time.Duration) {
	m.once, m.lastBid = true, m.now+min(max(wait, 0), never-m.now)
	m.campaign()
}

func (m *machine) campaign() {
	m.phase, m.until = campaigning, never
	if m.opens {
		m.send(action{what: "open"}, m.limit)
	} else {
		m.ask(nil)
	}
}

// ask bids, or observes.
func (m *machine) ask(version *int64) {
	wait := min(m.round, max(m.lastBid-m.now, 0))
	if m.failures > 0 && m.bid == "bid" {
		wait = min(wait, time.Second)
	}
	m.send(action{what: m.bid, term: m.left, version: version, wait: wait}, m.limit)
}

func (m *machine) answerBid(q *ask, a answer) {
	m.failures, m.toldNotYet, m.left = 0, false, nil
	switch {
	case a.token != nil:
		m.elect(q, a)
	case m.stopping || m.now >= m.lastBid:
		m.finish()
	case m.opens:
		m.ask(nil)
	default:
		m.until = min(q.at+m.between, m.lastBid)
	}
}

func (m *machine) elect(q *ask, a answer) {
	m.term = &Term{mu: &m.mu, now: m.clock, election: *cmp.Or(a.name, &m.election), token: *a.token, beatenUntil: never, beatLength: never / 2}
	m.phase = confirming
	if m.opens {
		m.confirm()
		return
	}
	m.term.beatAt, m.term.beatLength = q.at, cmp.Or(m.opt.Heartbeat*2/3, never/2)
	m.confirmed(q)
	m.lead()
}

func (m *machine) lead() {
	if m.over == nil && m.now >= m.term.validUntil() {
		m.doubt()
	}
	if m.over != nil || m.stopping {
		m.phase = leaving
		return
	}
	m.phase, m.began, m.reportAt = electing, m.now, m.now+m.opt.StopTimeout
	m.terms++
	m.do(action{what: "elected", term: m.term})
}

func (m *machine) failAttempt(q *ask, err error) {
	m.close()
	m.forgetTerm()
	server := serverError(err)
	notYet, judged := server.Code == "LE003", q.what == m.bid && q.begun
	if judged && server.Code == "42501" && m.left != nil { // of a role that was replaced
		m.left = nil
	} else if cause := permanent(server.Code); cause != "" && judged && !m.stopping {
		m.end(&PermanentError{cause, err})
		return
	}
	if m.now >= m.lastBid && !m.stopping {
		m.end(err)
		return
	}
	if !notYet || !m.toldNotYet {
		m.report(err)
	}
	m.toldNotYet = notYet
	if hint := inHint.FindStringSubmatch(server.Hint); notYet && hint != nil {
		ms, _ := strconv.Atoi(hint[1])
		m.pause(time.Duration(ms) * time.Millisecond)
		return
	}
	m.pause(m.backoff(15*time.Second, m.failures))
}

var inHint = regexp.MustCompile(`(\d+) ms`)

// backoff returns the pause after an error that others in a row came before.
func (m *machine) backoff(most time.Duration, before int) time.Duration {
	m.failures++
	return m.jitter(min(most, 500*time.Millisecond<<min(before, 10)))
}

func (m *machine) jitter(d time.Duration) time.Duration {
	return time.Duration((0.5 + m.random()/2) * float64(d))
}

// pause lets the next campaign begin after a while, or ends.
func (m *machine) pause(length time.Duration) {
	m.phase, m.until = paused, min(m.now+length, m.lastBid)
	if m.stopping {
		m.end(nil)
	}
}

func (m *machine) end(err error) {
	m.phase, m.until = stopped, never
	m.do(action{what: "end", err: cmp.Or(err, m.result)})
}

// The term

func (m *machine) confirm() {
	what := "confirm"
	if m.opens && m.opt.Heartbeat > 0 && (m.phase == confirming || m.term.beats != m.carried) {
		what = "beat"
	}
	m.send(action{what: what}, m.patience)
}

func (m *machine) answerConfirm(q *ask, a answer) {
	switch {
	case m.over != nil:
		return
	case m.opens && a.pid != m.pid:
		m.lose(ReasonLost, errPooler)
	case a.leads:
		m.confirmed(q)
	default:
		m.lose(ReasonLost, ErrLost)
	}
	if m.phase == confirming {
		m.lead()
	}
}

func (m *machine) confirmed(q *ask) {
	m.confirmations++
	m.due, m.term.confirmedUntil = q.at+m.interval, q.at+m.validity
	if q.what == "beat" {
		m.carried, m.term.beatenUntil = q.beats, q.at+m.opt.Heartbeat*2/3
	}
}

// onReturned is called after elected, the job or ousted.
func (m *machine) onReturned(err error) {
	kind, reason := ErrCallback, ReasonJobReturned
	if m.phase == working {
		kind = ErrJob
	}
	if err != nil {
		reason = ReasonJobFailed
		if m.once && m.phase == working && m.over == nil {
			m.result = err
		} else {
			m.report(fmt.Errorf("%w: %w", kind, err))
		}
	}
	m.phase++
	m.reportAt = never
	if m.phase == working && m.reason != "" {
		m.phase = ousting
	}
	m.ran = m.ran || m.phase == working
	if m.phase == ousting {
		m.cancel(reason, nil)
		m.reportAt = m.now + m.opt.StopTimeout
	}
	if m.phase != leaving {
		m.do(action{what: calls[m.phase], term: m.term, reason: m.reason})
	}
}

func (m *machine) reportSlow() {
	err := ErrSlowJob
	if m.phase != working {
		err = fmt.Errorf("%w: it has not returned", ErrCallback)
	}
	m.reportAt = never
	m.report(fmt.Errorf("%w within %v", err, m.opt.StopTimeout))
}

// The end of a term

func (m *machine) onStop() {
	waits := m.phase > stopped && m.phase < electing && !m.stopping
	m.stopping = true
	if waits && (m.opens || m.asked == nil) {
		m.finish()
	} else if m.holds() {
		m.cancel(ReasonResigned, nil)
	}
}

func (m *machine) doubt() { m.lose(ReasonInDoubt, ErrInDoubt) }

func (m *machine) connectionLost(err error) {
	if m.holds() {
		m.lose(ReasonLost, fmt.Errorf("%w: %w", ErrLost, err))
	} else if m.over == ErrInDoubt {
		m.over = ErrLost
	}
}

func (m *machine) lose(reason Reason, err error) {
	m.over = err
	if err == errPooler {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	} else if m.once && (m.phase == working || m.reason == "") {
		m.result = err
	} else {
		m.report(err)
	}
	if !m.opens && m.asked != nil {
		m.close()
	}
	m.cancel(reason, err)
}

func (m *machine) cancel(reason Reason, err error) {
	if m.reason == "" {
		m.reason, m.term.cancelled = reason, true
		if reason == ReasonJobReturned || m.now-m.began >= time.Minute { // the job works
			m.crashes = 0
		}
		if m.phase == working {
			m.do(action{what: "cancel", err: err})
			m.reportAt = m.now + m.opt.StopTimeout
		}
	}
}

// leave resigns, unless there is nothing to resign, or no way to do it.
func (m *machine) leave() {
	if m.over != nil && (m.over != ErrInDoubt || m.asked != nil && m.asked.what != "resign") {
		m.finish()
	} else if m.asked == nil {
		m.send(action{what: "resign"}, m.limit)
	}
}

func (m *machine) finish() {
	reason, over := m.reason, m.over
	m.forgetTerm()
	m.close()
	switch {
	case over == errPooler:
		m.end(&PermanentError{CausePooler, over})
	case m.once:
		m.end(nil)
	case reason == ReasonJobReturned:
		m.pause(m.jitter(time.Second))
	case reason == ReasonJobFailed:
		m.crashes++
		m.pause(m.backoff(time.Minute, m.crashes-1))
	default:
		m.pause(m.backoff(15*time.Second, m.failures))
	}
}
