package leaderelection

import (
	"cmp"
	"fmt"
	"time"
)

// What a machine does in a campaign, in a term, and at the end of it.

var states = map[phase]State{stopped: StateStopped, paused: StatePaused, campaigning: StateWaiting, confirming: StateWaiting, electing: StateLeading, working: StateLeading}

var calls = map[phase]string{electing: "elected", working: "job", ousting: "ousted"}

func (m *machine) forgetTerm() {
	m.term, m.over, m.refused, m.reason, m.carried = nil, nil, false, "", 0
	m.due, m.reportAt, m.began = never, never, never
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

func (m *machine) fail(q *ask, err error) {
	m.refused = m.refused || q.begun && serverError(err).Code == "42501"
	switch {
	case m.phase <= confirming:
		m.failAttempt(q, err)
	case q.what == "resign", m.opens && m.phase == leaving:
		m.report(err)
		if !m.opens && !m.refused {
			m.left = m.term
		}
		m.finish()
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
	var ms time.Duration
	if named, _ := fmt.Sscanf(server.Hint, "Retry in %d ms", &ms); notYet && named > 0 {
		m.pause(ms * time.Millisecond)
		return
	}
	m.pause(m.backoff(15*time.Second, m.failures))
}

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
	m.phase, m.reportAt = m.phase+1, never
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
