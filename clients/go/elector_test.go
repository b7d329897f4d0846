//go:build go1.25

package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

func TestU01JobStartsAfterConfirmation(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.latency = 400 * ms // two connections ask for a process ID, then a bid and a confirmation
		s.start(untilCancelled, Options{})
		time.Sleep(10 * time.Second)
		s.stop()
		s.wantAt("le_am_leader", 1, 1200*ms)
		s.wantAt("job", 1, 1600*ms)
	})
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_am_leader", says(false))
		s.start(untilCancelled, Options{})
		time.Sleep(10 * time.Second)
		s.stop()
		s.wantOrder("", "job", "elected", "ousted")
		if len(s.all("error")) == 0 {
			t.Error("nothing was reported")
		}
	})
}

func TestU02CancelledWhenValidityHasPassed(t *testing.T) {
	for name, silence := range map[string]answerer{
		"the question is given up": hangs,
		"the driver never returns": func(context.Context, []any) ([]any, error) {
			time.Sleep(time.Hour)
			return nil, errors.New("no server")
		},
	} {
		simulate(t, func(t *testing.T, s *sim) {
			s.latency = 300 * ms
			s.start(s.stubborn(0), Options{})
			time.Sleep(3 * time.Second)
			s.set("le_am_leader", silence)
			time.Sleep(6 * time.Second)
			s.wantAt("le_am_leader", 2, 1900*ms) // was answered
			s.wantAt("le_am_leader", 3, 2900*ms) // was not
			s.wantAt("cancelled", 1, 7900*ms)
			s.set("le_am_leader", nil)
			s.stop()
			if e := s.all("ousted"); e[0].args[0] != InDoubt && e[0].args[0] != Lost {
				t.Error(name, e)
			}
		})
	}
	simulate(t, func(t *testing.T, s *sim) {
		s.latency = 300 * ms
		s.start(s.stubborn(0), Options{TTL: 3 * time.Second})
		time.Sleep(1500 * ms)
		s.set("le_renew", hangs)
		s.set("le_lease", hangs)
		time.Sleep(10 * time.Second)
		s.stop()
		s.wantAt("le_lease", 1, 0)
		s.wantAt("le_renew", 1, 1000*ms)
		s.wantAt("le_renew", 2, 2000*ms)
		s.wantAt("cancelled", 1, 3000*ms)
		if e := s.all("ousted"); e[0].args[0] != InDoubt {
			t.Error(e)
		}
	})
	simulate(t, func(t *testing.T, s *sim) { // the bid counts from before it was sent, too
		s.latency = 300 * ms
		s.set("le_renew", hangs)
		s.start(s.stubborn(0), Options{TTL: 3 * time.Second})
		time.Sleep(2500 * ms)
		s.stop()
		s.wantAt("cancelled", 1, 2000*ms)
	})
}

func TestU02UnansweredQuestionIsNotGivenUpUnderTheJob(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(3*time.Second), Options{})
		time.Sleep(3 * time.Second)
		s.set("le_am_leader", func(ctx context.Context, args []any) ([]any, error) {
			s.set("le_am_leader", nil)
			_, err := hangs(ctx, args)
			s.log("given up") // which has a driver end the connection
			return nil, err
		})
		time.Sleep(9 * time.Second)
		s.stop()
		s.wantOrder("cancelled stopped given up cancelled stopped", "cancelled", "stopped", "given up")
	})
}

func TestU03FalseCancelsAtOnce(t *testing.T) {
	for function, opt := range map[string]Options{"le_am_leader": {}, "le_renew": {TTL: 6 * time.Second}} {
		simulate(t, func(t *testing.T, s *sim) {
			s.start(s.stubborn(0), opt)
			time.Sleep(5 * time.Second)
			s.set(function, func(context.Context, []any) ([]any, error) {
				s.set(function, nil)
				return []any{false}, nil
			})
			time.Sleep(3 * time.Second)
			lost := s.all("error")
			s.stop()
			if len(lost) != 1 || !errors.Is(lost[0].args[0].(error), ErrLost) {
				t.Fatal(lost)
			}
			s.wantAt("cancelled", 1, lost[0].at)
			if e := s.all("ousted"); e[0].args[0] != Lost {
				t.Error(e)
			}
			if n := len(s.all("le_resign")); n != 1 { // of the second term
				t.Errorf("%d resignations", n)
			}
		})
	}
}

func TestU04EndOfConnectionCancelsAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(0), Options{})
		time.Sleep(2345 * ms)
		s.endConnection(0)
		time.Sleep(time.Second)
		s.stop()
		s.wantAt("cancelled", 1, 2345*ms)
		s.wantErrors("connection reset")
	})
}

func TestU05LeaseSurvivesErrors(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(0), Options{TTL: 6 * time.Second})
		time.Sleep(time.Second)
		s.set("le_renew", fails("no server"))
		time.Sleep(1900 * ms) // at 2 and, after a tenth of the ttl, at 2.61
		s.set("le_renew", nil)
		time.Sleep(7 * time.Second)
		if len(s.all("cancelled")) > 0 || !strings.Contains(fmt.Sprint(s.e.State()), "leading") {
			t.Errorf("the job was cancelled: %v", s.events)
		}
		s.wantErrors("no server", "no server")
		s.wantAt("le_renew", 2, 2610*ms)
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_renew", fails("no server"))
		s.start(s.stubborn(0), Options{TTL: 6 * time.Second})
		time.Sleep(4100 * ms)
		s.wantAt("cancelled", 1, 4*time.Second)
		errors := s.all("error")
		if last := errors[len(errors)-1]; !strings.Contains(fmt.Sprint(last.args), "in doubt") {
			t.Error(errors)
		}
		s.stop()
	})
}

func TestU06JobWithoutHeartbeatIsCancelled(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(0), Options{Heartbeat: 6 * time.Second})
		time.Sleep(5 * time.Second)
		if got, want := s.at("cancelled", 1), s.at("le_heartbeat", 1)+4*time.Second; got != want {
			t.Errorf("cancelled at %v, want %v", got, want)
		}
		if e := s.all("ousted"); e[0].args[0] != InDoubt {
			t.Error(e)
		}
		s.wantErrors("in doubt")
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // a job that goes on
		s.start(func(ctx context.Context, term *Term) error {
			for sleep(ctx, 500*ms) {
				term.Heartbeat()
			}
			return nil
		}, Options{Heartbeat: 6 * time.Second})
		time.Sleep(time.Minute)
		s.wantOrder("elected", "elected", "ousted", "error")
		s.stop()
	})
}

func TestU07HeartbeatIsSentOnlyAfterProgress(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(func(ctx context.Context, term *Term) error {
			sleep(ctx, 1500*ms)
			term.Heartbeat()
			term.Heartbeat()
			<-ctx.Done()
			return nil
		}, Options{Heartbeat: 30 * time.Second})
		time.Sleep(4500 * ms)
		s.stop()
		s.wantOrder("le_heartbeat job le_am_leader le_heartbeat le_am_leader le_am_leader",
			"le_heartbeat", "le_am_leader", "job")
	})
	simulate(t, func(t *testing.T, s *sim) { // without a heartbeat, it is never sent
		s.start(func(ctx context.Context, term *Term) error {
			for sleep(ctx, 500*ms) {
				term.Heartbeat()
			}
			return nil
		}, Options{})
		time.Sleep(4500 * ms)
		s.stop()
		s.wantOrder("", "le_heartbeat")
	})
}

func TestU08RenewalOnHeartbeat(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(func(ctx context.Context, term *Term) error {
			for range 10 { // until 5 s
				sleep(ctx, 500*ms)
				term.Heartbeat()
			}
			<-ctx.Done()
			s.log("cancelled")
			return nil
		}, Options{TTL: 3 * time.Second, RenewOnHeartbeat: true})
		time.Sleep(8500 * ms)
		last := s.at("le_renew", -1)
		if last != 6*time.Second { // for the heartbeat at 5.01 s
			t.Errorf("last renewal at %v", last)
		}
		s.wantAt("cancelled", 1, last+2*time.Second)
		if e := s.all("ousted"); e[0].args[0] != InDoubt {
			t.Error(e)
		}
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // a renewal that fails does not use the heartbeat up
		s.set("le_renew", func(context.Context, []any) ([]any, error) {
			s.set("le_renew", nil)
			return nil, errors.New("no server")
		})
		s.start(func(ctx context.Context, term *Term) error {
			term.Heartbeat()
			<-ctx.Done()
			return nil
		}, Options{TTL: 3 * time.Second, RenewOnHeartbeat: true})
		time.Sleep(2500 * ms)
		s.wantAt("le_renew", 2, 1310*ms)
		s.wantOrder("", "ousted")
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // a heartbeat that comes late is used at once
		s.start(func(ctx context.Context, term *Term) error {
			sleep(ctx, 1700*ms)
			term.Heartbeat()
			<-ctx.Done()
			return nil
		}, Options{TTL: 3 * time.Second, RenewOnHeartbeat: true})
		time.Sleep(3 * time.Second)
		s.wantAt("le_renew", 1, 1710*ms)
		s.wantOrder("", "ousted")
		s.stop()
	})
}

func TestU09NoCampaignBeforeTheJobHasStopped(t *testing.T) {
	for bid, opt := range map[string]Options{"le_campaign": {}, "le_lease": {TTL: 3 * time.Second}} {
		simulate(t, func(t *testing.T, s *sim) {
			s.start(s.stubborn(time.Hour), opt)
			time.Sleep(time.Second)
			s.set("le_am_leader", says(false))
			s.set("le_renew", says(false))
			time.Sleep(30 * time.Minute)
			s.set("le_am_leader", nil)
			s.set("le_renew", nil)
			if s.e.State() != Stopping {
				t.Errorf("state %q", s.e.State())
			}
			time.Sleep(31 * time.Minute)
			s.stop()
			s.wantOrder(bid+" job cancelled stopped ousted "+bid+" job cancelled stopped ousted",
				bid, "job", "cancelled", "stopped", "ousted")
		})
	}
}

func TestU10StopTimeoutIsReportedOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(time.Hour), Options{StopTimeout: 7 * time.Second})
		time.Sleep(5 * time.Second)
		s.stop()
		s.wantErrors("not stopped within 7s")
		s.wantAt("error", 1, 12*time.Second)
	})
	simulate(t, func(t *testing.T, s *sim) {
		s.start(s.stubborn(9*time.Second), Options{})
		time.Sleep(5 * time.Second)
		s.stop()
		s.wantErrors()
	})
}

func TestU11StopWhileLeading(t *testing.T) {
	for confirmation, opt := range map[string]Options{"le_am_leader": {}, "le_renew": {TTL: 3 * time.Second}} {
		simulate(t, func(t *testing.T, s *sim) {
			s.start(s.stubborn(8500*ms), opt)
			time.Sleep(5 * time.Second)
			s.stop()
			s.wantErrors()
			s.wantAt("cancelled", 1, 5*time.Second)
			s.wantAt("stopped", 1, 13500*ms)
			s.wantAt("le_resign", 1, 13500*ms)
			s.wantAt("returned", 1, 13510*ms)
			s.wantOrder("job cancelled stopped ousted le_resign returned", "job", "cancelled", "stopped", "ousted", "le_resign", "returned")
			if last := s.at(confirmation, -1); last < 12*time.Second {
				t.Errorf("last confirmation at %v", last)
			}
			if e := s.all("ousted"); e[0].args[0] != Resigned {
				t.Error(e)
			}
			if s.err != nil {
				t.Error(s.err)
			}
		})
	}
}

func TestU12StopWhileWaiting(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_campaign", hangs)
		s.start(untilCancelled, Options{})
		time.Sleep(5 * time.Second)
		if s.e.State() != Waiting {
			t.Errorf("state %q", s.e.State())
		}
		s.stop()
		s.wantErrors()
		s.wantAt("returned", 1, 5*time.Second)
		s.wantOrder("connect connect close le_campaign close returned", "connect", "le_campaign", "close", "returned", "job")
		if s.err != nil {
			t.Error(s.err)
		}
	})
	simulate(t, func(t *testing.T, s *sim) { // between two bids
		s.set("le_lease", says(nil))
		s.start(untilCancelled, Options{TTL: 6 * time.Second})
		time.Sleep(5 * time.Second)
		s.stop()
		s.wantErrors()
		s.wantAt("le_lease", 3, 4*time.Second)
		s.wantAt("returned", 1, 5*time.Second)
	})
	simulate(t, func(t *testing.T, s *sim) { // a lease that is granted while Run stops is given back
		s.latency = time.Second
		s.start(untilCancelled, Options{TTL: 6 * time.Second})
		time.Sleep(500 * ms)
		s.stop()
		s.wantErrors()
		s.wantOrder("le_lease le_resign returned", "le_lease", "le_resign", "returned", "job", "elected", "ousted")
	})
	simulate(t, func(t *testing.T, s *sim) { // while it connects
		s.set("connect", hangs)
		s.start(untilCancelled, Options{})
		time.Sleep(ms)
		s.stop()
		s.wantErrors()
		s.wantAt("returned", 1, ms)
	})
}

func TestU13StopWhilePaused(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.random = 1
		s.set("connect", fails("no server"))
		s.start(untilCancelled, Options{})
		time.Sleep(10 * time.Second) // the pauses end at 0.5, 1.5, 3.5, 7.5, 15.5
		if s.e.State() != Paused {
			t.Errorf("state %q", s.e.State())
		}
		s.stop()
		s.wantAt("returned", 1, 10*time.Second)
	})
}

func TestU14JobThatReturns(t *testing.T) {
	for random, pause := range map[float64]time.Duration{0: 500 * ms, 1: time.Second} {
		simulate(t, func(t *testing.T, s *sim) {
			s.random = random
			s.start(func(context.Context, *Term) error { return nil }, Options{TTL: 3 * time.Second})
			time.Sleep(1200 * ms)
			s.stop()
			s.wantErrors()
			s.wantAt("le_lease", 2, s.at("le_resign", 1)+s.latency+pause)
			if e := s.all("ousted"); e[0].args[0] != JobReturned {
				t.Error(e)
			}
		})
	}
}

func TestU15JobThatFails(t *testing.T) {
	for name, job := range map[string]Job{
		"error": func(context.Context, *Term) error { return errors.New("disk full") },
		"panic": func(context.Context, *Term) error { panic("disk full") },
	} {
		for random, pause := range map[float64]time.Duration{0: 250 * ms, 1: 500 * ms} {
			simulate(t, func(t *testing.T, s *sim) {
				s.random = random
				s.start(job, Options{TTL: 3 * time.Second})
				time.Sleep(200 * ms)
				s.wantErrors("disk full")
				time.Sleep(pause)
				s.stop()
				s.wantErrors("disk full", "disk full")
				s.wantAt("le_lease", 2, s.at("le_resign", 1)+s.latency+pause)
				if e := s.all("ousted"); e[0].args[0] != JobFailed {
					t.Error(name, e)
				}
			})
		}
	}
}

func TestU16ErrorsInARow(t *testing.T) {
	for random, factor := range map[float64]time.Duration{0: 1, 1: 2} {
		simulate(t, func(t *testing.T, s *sim) {
			s.random = random
			s.latency = 0
			s.set("le_lease", fails("no server"))
			s.start(untilCancelled, Options{TTL: 3 * time.Second})
			time.Sleep(time.Minute)
			s.set("le_lease", says(nil))
			time.Sleep(20 * time.Second)
			n := len(s.all("error"))
			s.set("le_lease", fails("no server"))
			time.Sleep(2 * time.Second)
			s.stop()
			bids := s.all("le_lease")
			for i, want := range []time.Duration{250, 500, 1000, 2000, 4000, 7500, 7500} {
				if got := bids[i+1].at - bids[i].at; got != want*factor*ms {
					t.Errorf("pause %v after error %d, want %v", got, i+1, want*factor*ms)
				}
				s.wantAt("error", i+1, bids[i].at)
			}
			if got, want := s.at("error", n+2)-s.at("error", n+1), 250*factor*ms; got != want {
				t.Errorf("pause %v after a bid was answered, want %v", got, want)
			}
		})
	}
}

func TestU17LeaseThatCouldNotBeResigned(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_resign", fails("no server"))
		s.start(func(ctx context.Context, _ *Term) error {
			if len(s.all("job")) == 1 {
				return nil
			}
			<-ctx.Done()
			return nil
		}, Options{TTL: 3 * time.Second})
		time.Sleep(100 * ms)
		s.wantErrors("no server")
		s.set("le_resign", nil)
		time.Sleep(5 * time.Second)
		s.stop()
		if bids := s.all("le_lease"); len(bids) != 2 || bids[0].args[3] != nil || bids[1].args[3] != int64(1) {
			t.Error(bids)
		}
	})
}

type codedError struct{ code, message string }

func (e codedError) Error() string    { return e.message }
func (e codedError) SQLState() string { return e.code }

func TestU18Pooler(t *testing.T) {
	ends := func(t *testing.T, s *sim) {
		t.Helper()
		select {
		case <-s.ended:
		case <-time.After(time.Minute):
			t.Fatal("Run has not returned")
		}
		if !errors.Is(s.err, ErrPooler) {
			t.Errorf("Run returned %v", s.err)
		}
		s.wantErrors()
		s.stop()
	}
	simulate(t, func(t *testing.T, s *sim) { // both connections have the same server process
		s.samePID = true
		s.start(untilCancelled, Options{})
		ends(t, s)
		s.wantOrder("", "job", "le_campaign")
	})
	simulate(t, func(t *testing.T, s *sim) { // the session is another process's
		s.set("le_campaign", func(context.Context, []any) ([]any, error) {
			return nil, codedError{"LE005", `cannot wait to lead election "billing", which this session leads already`}
		})
		s.start(untilCancelled, Options{})
		ends(t, s)
		s.wantOrder("", "job")
	})
	simulate(t, func(t *testing.T, s *sim) { // the server process has changed before the first confirmation
		s.set("le_am_leader", says(true, int32(99)))
		s.start(untilCancelled, Options{})
		ends(t, s)
		s.wantOrder("le_resign", "job", "le_resign")
	})
	simulate(t, func(t *testing.T, s *sim) { // it changes while the job runs
		s.start(s.stubborn(2*time.Second), Options{})
		time.Sleep(1500 * ms)
		s.set("le_am_leader", says(true, int32(99)))
		ends(t, s)
		s.wantOrder("job cancelled stopped ousted returned", "job", "cancelled", "stopped", "ousted", "returned")
	})
	simulate(t, func(t *testing.T, s *sim) { // other errors do not end it
		s.set("le_campaign", func(context.Context, []any) ([]any, error) {
			return nil, codedError{"55000", `the registry of elections was made by another version of leader_election`}
		})
		s.start(untilCancelled, Options{})
		time.Sleep(100 * ms)
		s.stop()
		s.wantErrors("another version")
	})
}

func TestU19IsLeadingLooksAtTheClock(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		var term *Term
		s.start(untilCancelled, Options{TTL: 6 * time.Second, OnElected: func(t *Term) {
			if t.Token() == 1 {
				term = t
			}
		}})
		time.Sleep(501 * ms)
		synctest.Wait()
		if !term.IsLeading() {
			t.Error("not leading")
		}
		s.suspend.Store(int64(3498 * ms)) // the machine is suspended, and no timer runs
		if !term.IsLeading() {
			t.Error("not leading before the validity has passed")
		}
		s.suspend.Store(int64(3500 * ms))
		if term.IsLeading() {
			t.Error("leading after the validity has passed")
		}
		time.Sleep(time.Second) // by then, timers have run
		if e := s.all("ousted"); len(e) != 1 || e[0].args[0] != InDoubt {
			t.Error(e)
		}
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // in session scope, the validity is six seconds
		var term *Term
		s.start(untilCancelled, Options{OnElected: func(t *Term) { term = t }})
		time.Sleep(501 * ms)
		synctest.Wait()
		first := term
		s.suspend.Store(int64(5490 * ms))
		if !first.IsLeading() {
			t.Error("not leading before the validity has passed")
		}
		s.suspend.Store(int64(5600 * ms))
		if first.IsLeading() {
			t.Error("leading after the validity has passed")
		}
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // nor after the job was told to stop
		var term *Term
		s.start(s.stubborn(time.Second), Options{OnElected: func(t *Term) { term = t }})
		time.Sleep(100 * ms)
		synctest.Wait()
		time.AfterFunc(ms, func() {
			if term.IsLeading() {
				t.Error("leading after a stop")
			}
		})
		s.stop()
	})
	simulate(t, func(t *testing.T, s *sim) { // nor does a confirmation count that comes after that
		s.start(untilCancelled, Options{TTL: 6 * time.Second})
		s.set("le_renew", func(context.Context, []any) ([]any, error) {
			time.Sleep(50 * ms)
			return []any{true}, nil
		})
		time.Sleep(2040 * ms) // a question is on its way, and the clock was just looked at
		s.suspend.Store(int64(3 * time.Second))
		time.Sleep(100 * ms)
		if e := s.all("ousted"); len(e) != 1 || e[0].args[0] != InDoubt {
			t.Error(s.events)
		}
		s.stop()
	})
}

func TestU20Callbacks(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		var terms []int64
		s.start(func(ctx context.Context, term *Term) error {
			if term.Token() == 1 {
				return errors.New("disk full")
			}
			<-ctx.Done()
			return nil
		}, Options{
			TTL:       3 * time.Second,
			OnElected: func(term *Term) { terms = append(terms, term.Token()) },
			OnOusted:  func(term *Term, _ Reason) { terms = append(terms, term.Token()) },
		})
		time.Sleep(5 * time.Second)
		s.stop()
		s.wantOrder("elected job stopped error ousted elected job stopped ousted", "elected", "job", "stopped", "error", "ousted")
		if fmt.Sprint(terms) != "[1 1 2 2]" {
			t.Error(terms)
		}
		if e := s.all("ousted"); e[0].args[0] != JobFailed || e[1].args[0] != Resigned {
			t.Error(e)
		}
	})
	simulate(t, func(t *testing.T, s *sim) { // they fail
		s.start(untilCancelled, Options{
			TTL:       3 * time.Second,
			OnElected: func(*Term) { panic("one") },
			OnOusted:  func(*Term, Reason) { panic("two") },
			OnError:   func(error) { panic("three") },
		})
		time.Sleep(5 * time.Second)
		s.stop()
		s.wantErrors("one", "two")
		s.wantOrder("elected job stopped ousted le_resign returned", "elected", "job", "stopped", "ousted", "le_resign", "returned")
	})
}

func TestJobDoesNotStartAfterElectedTookTooLong(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_renew", fails("no server"))
		s.start(untilCancelled, Options{TTL: 3 * time.Second, OnElected: func(*Term) { time.Sleep(2500 * ms) }})
		time.Sleep(2600 * ms)
		s.stop()
		s.wantOrder("elected ousted", "elected", "job", "ousted")
	})
}

func TestU21Seats(t *testing.T) {
	for confirmation, opt := range map[string]Options{
		"le_am_leader": {Seats: 3},
		"le_heartbeat": {Seats: 3, Heartbeat: 3 * time.Second},
		"le_renew":     {Seats: 3, TTL: 3 * time.Second},
	} {
		simulate(t, func(t *testing.T, s *sim) {
			s.start(func(ctx context.Context, term *Term) error {
				if term.Election() != "billing/2" {
					t.Error(term.Election())
				}
				for sleep(ctx, 100*ms) {
					term.Heartbeat()
				}
				return nil
			}, opt)
			time.Sleep(3 * time.Second)
			s.stop()
			s.wantErrors()
			if bid := s.all("le_campaign")[0]; bid.args[0] != "billing" || bid.args[len(bid.args)-1] != 3 {
				t.Error(bid)
			}
			for _, e := range s.all("le_am_leader", "le_heartbeat", "le_renew", "le_resign") {
				if e.args[0] != "billing/2" {
					t.Error(e)
				}
			}
			if len(s.all(confirmation)) < 2 || len(s.all("le_resign")) != 1 {
				t.Error(s.events)
			}
		})
	}
}

func TestU22BadArguments(t *testing.T) {
	s := &sim{}
	long := strings.Repeat("x", 256)
	for name, opt := range map[string]Options{
		"identity":           {Identity: long},
		"seats":              {Seats: -1},
		"too many seats":     {Seats: 10001},
		"heartbeat":          {Heartbeat: 999 * ms},
		"negative heartbeat": {Heartbeat: -time.Second},
		"ttl":                {TTL: 999 * ms},
		"both":               {Heartbeat: time.Second, TTL: time.Second},
		"renew on heartbeat": {RenewOnHeartbeat: true},
		"stop timeout":       {StopTimeout: -1},
	} {
		if e, err := New(s, "billing", untilCancelled, &opt); err == nil || e != nil {
			t.Errorf("%s was accepted", name)
		}
	}
	for _, election := range []string{"", long} {
		if _, err := New(s, election, untilCancelled, nil); err == nil {
			t.Errorf("election %q was accepted", election)
		}
	}
	if _, err := New(s, long[:254], untilCancelled, &Options{Seats: 2}); err == nil {
		t.Error("a seat with a name that is too long was accepted")
	}
	if _, err := New(nil, "billing", untilCancelled, nil); err == nil {
		t.Error("no database was accepted")
	}
	if _, err := New(s, "billing", nil, nil); err == nil {
		t.Error("no job was accepted")
	}
	if _, err := New(s, long[:255], untilCancelled, &Options{Identity: long[:255], TTL: time.Second, RenewOnHeartbeat: true}); err != nil {
		t.Error(err)
	}
}

func TestU23NullIsBidAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.set("le_campaign", func(ctx context.Context, args []any) ([]any, error) {
			if n := len(s.all("le_campaign")); n < 3 {
				sleep(ctx, 300*time.Second-s.latency)
				return []any{nil}, nil
			}
			return []any{int64(7)}, nil
		})
		s.start(untilCancelled, Options{})
		time.Sleep(605 * time.Second)
		s.stop()
		s.wantErrors()
		first := s.at("le_campaign", 1)
		s.wantAt("le_campaign", 2, first+300*time.Second)
		s.wantAt("le_campaign", 3, first+600*time.Second)
		s.wantOrder("elected", "elected")
	})
}

func TestU24DefaultIdentities(t *testing.T) {
	one, err := New(&sim{}, "billing", untilCancelled, nil)
	if err != nil {
		t.Fatal(err)
	}
	two, _ := New(&sim{}, "billing", untilCancelled, nil)
	if one.Identity() == two.Identity() || len(strings.Split(one.Identity(), ":")) != 3 {
		t.Error(one.Identity(), two.Identity())
	}
}

func TestEveryTriesAgain(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		calls := 0
		s.start(Every(s, time.Minute, func(_ context.Context, tx string, due time.Time) error {
			if calls++; calls == 1 {
				return errors.New("disk full")
			}
			return nil
		}), Options{TTL: 3 * time.Second, RenewOnHeartbeat: true})
		time.Sleep(70 * time.Second)
		s.stop()
		s.wantErrors("disk full")
		s.wantOrder("le_once transaction le_once transaction le_once transaction", "le_once", "transaction", "ousted le_lease")
		if again := s.at("le_once", 2) - s.at("transaction", 1); again < time.Second || again > 1100*ms || calls != 3 {
			t.Error(again, calls)
		}
	})
}

func TestRunTwice(t *testing.T) {
	simulate(t, func(t *testing.T, s *sim) {
		s.start(untilCancelled, Options{})
		synctest.Wait()
		if err := s.e.Run(context.Background()); err == nil {
			t.Error("a second Run was accepted")
		}
		s.stop()
	})
}
