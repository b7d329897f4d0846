package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	round           = 5 * time.Minute // of a campaign
	sessionValidity = 6 * time.Second
	sharedSession   = "LE005" // SQLSTATE: this session leads under another identity
)

// A session is a post in session scope. It has a connection of its own, whose
// end is the end of the term.
type session struct {
	*Elector
	conn Conn
	pid  int32  // of the server's process
	stop func() // stops a question that was not answered in time
}

// openSession connects, the first time twice: two connections that have the
// same server process share it through a pooler.
func (e *Elector) openSession(ctx context.Context) (post, error) {
	first, err := e.connect(ctx)
	if err != nil || e.checked {
		return first, err
	}
	second, err := e.connect(ctx)
	if err == nil {
		second.close()
		e.checked = true
		if first.pid != second.pid {
			return first, nil
		}
		err = ErrPooler
	}
	first.close()
	return nil, err
}

func (e *Elector) connect(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timing.answer)
	defer cancel()
	conn, err := e.db.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	s := &session{Elector: e, conn: conn}
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", nil, &s.pid); err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return s, nil
}

func (s *session) bid(ctx context.Context) (*Term, error) {
	sql := "CALL le_campaign($1::text, timeout => $2::interval, identity => $3::text, heartbeat => $4::interval)"
	args := []any{s.election, interval(round), s.opt.Identity, nil}
	if s.opt.Heartbeat > 0 {
		args[3] = interval(s.opt.Heartbeat)
	}
	var token *int64
	seat := &s.election
	dest := []any{&token}
	if s.opt.Seats > 0 {
		sql = strings.Replace(sql, "$1::text", "le_seats($1::text, $5::integer)", 1)
		args, dest = append(args, s.opt.Seats), append(dest, &seat)
	}
	bidding, cancel := context.WithTimeout(ctx, round+s.timing.answer)
	defer cancel()
	if err := s.conn.QueryRow(bidding, sql, args, dest...); err != nil {
		var failure interface{ SQLState() string }
		if errors.As(err, &failure) && failure.SQLState() == sharedSession {
			return nil, fmt.Errorf("%w: %w", ErrPooler, err)
		}
		return nil, fmt.Errorf("cannot campaign in election %q: %w", s.election, err)
	}
	s.failures = 0
	if token == nil {
		return nil, nil
	}
	t := s.newTerm(*seat, *token)
	if err := s.confirm(ctx, t, true); err != nil {
		if errors.Is(err, ErrPooler) {
			_ = s.resign(ctx, t)
		}
		return nil, fmt.Errorf("elected in election %q, but not confirmed: %w", t.election, err)
	}
	return t, nil
}

func (s *session) confirm(ctx context.Context, t *Term, beat bool) error {
	sql := "SELECT le_am_leader($1::text, identity => $2::text), pg_backend_pid()"
	args := []any{t.election, s.opt.Identity}
	beat = beat && s.opt.Heartbeat > 0
	if beat {
		sql, args = "SELECT le_heartbeat($1::text), pg_backend_pid()", args[:1]
	}
	var leads bool
	var pid int32
	asked := s.now()
	if err := s.ask(ctx, sql, args, &leads, &pid); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	if pid != s.pid {
		return ErrPooler
	}
	if !leads {
		return ErrLost
	}
	until := asked + sessionValidity
	if beat {
		t.beaten = asked + s.opt.Heartbeat*2/3
	}
	if s.opt.Heartbeat > 0 {
		until = min(until, t.beaten)
	}
	return t.extend(asked, until)
}

func (s *session) wait(ctx context.Context) error { return s.conn.Wait(ctx) }

func (s *session) resign(ctx context.Context, t *Term) error {
	var resigned bool
	return s.ask(ctx, "SELECT le_resign($1::text, identity => $2::text)", []any{t.election, s.opt.Identity}, &resigned)
}

// ask does not wait for an answer that comes too late, but has it be waited for
// until close: a driver that gives a question up ends the connection, and that
// would give up leadership while the job still runs.
func (s *session) ask(ctx context.Context, sql string, args []any, dest ...any) error {
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also after a stop
	answered := make(chan error, 1)
	go func() { answered <- s.conn.QueryRow(asking, sql, args, dest...) }()
	timer := time.NewTimer(s.timing.answer)
	defer timer.Stop()
	select {
	case err := <-answered:
		cancel()
		return err
	case <-timer.C:
		s.stop = func() { cancel(); <-answered }
		return context.DeadlineExceeded
	}
}

func (s *session) close() {
	if s.stop != nil {
		s.stop()
	}
	s.conn.Close()
}
