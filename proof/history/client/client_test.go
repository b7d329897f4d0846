package client

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"leader_election/proof/event"
)

func TestJudge(t *testing.T) {
	refusal := func(severity, code string) error { return &pgconn.PgError{Severity: severity, Code: code} }
	for _, test := range []struct {
		do   string
		err  error
		want string
	}{
		{event.Try, errors.New("connection reset"), event.Unknown},
		{event.Try, refusal("ERROR", "55000"), event.Failed},
		{event.Wait, refusal("ERROR", "57014"), event.Unknown},
		{event.Wait, refusal("ERROR", "40P01"), event.Failed},
		{event.Wait, refusal("FATAL", "57P01"), event.Unknown},
		{event.Campaign, refusal("ERROR", "XX000"), event.Unknown},
		{event.WaitXact, refusal("ERROR", "57014"), event.Unknown},
		{event.Lease, refusal("ERROR", "57014"), event.Failed},
		{event.Lease, refusal("FATAL", "57P01"), event.Unknown},
		{event.Renew, refusal("ERROR", "57014"), event.Unknown},
		{event.Depose, refusal("ERROR", "57014"), event.Unknown},
		{event.Resign, refusal("ERROR", "25006"), event.Failed},
		{event.Write, refusal("ERROR", "LE001"), event.Failed},
		{event.Write, refusal("FATAL", "57P01"), event.Unknown},
		{event.Write, errors.New("connection reset"), event.Unknown},
		{event.Write, rolledBack{errors.New("connection reset")}, event.Failed},
		{event.Write, rolledBack{refusal("FATAL", "LE004")}, event.Failed},
		{event.Lease, &pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "server login has been failing, try again"},
			event.Failed},
	} {
		answer := event.Record{Do: test.do}
		judge(&answer, test.err)
		if answer.Outcome != test.want {
			t.Errorf("%s, %v: %s, not %s", test.do, test.err, answer.Outcome, test.want)
		}
		if answer.SQLState != state(test.err) {
			t.Errorf("%s, %v: SQLSTATE %q", test.do, test.err, answer.SQLState)
		}
	}
}

func TestChoice(t *testing.T) {
	c := newClient(Config{Number: 1, Ways: []string{"session", "lease", "observe"}, Route: Route{Through: Direct}},
		nil, t.Context())
	if n := len(c.choice()); n != 64 {
		t.Errorf("%d choices", n)
	}
	c.Through = PoolerTransaction
	for _, w := range c.choice() {
		if w.name == "session" {
			t.Error("session scope through a pooler in transaction mode")
		}
	}
}

func TestTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "primary.json")
	if err := os.WriteFile(file, []byte(`{"host": "10.1.2.3", "port": 5440, "server": 2}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for address, database := range map[string]string{"": "postgres", "host=127.0.0.1 port=1 user=u dbname=d": "d"} {
		config, server, err := Route{Address: address, File: file, Through: Direct}.target()
		if err != nil || config.Host != "10.1.2.3" || config.Port != 5440 || server != 2 || config.Database != database {
			t.Errorf("%q: %+v, %d, %v", address, config, server, err)
		}
	}
}

func TestTermRuns(t *testing.T) {
	term := &term{span: time.Minute}
	if term.extended(event.Now()); !term.runs() {
		t.Error("a term ends before its span")
	}
	if term.extended(event.Now() - int64(time.Hour)); term.runs() {
		t.Error("a term goes on after its span")
	}
	term.span = 0
	term.extended(0)
	if term.ended = true; term.runs() {
		t.Error("a term goes on after its end")
	}
}

func TestInterval(t *testing.T) {
	if interval(0) != nil || interval(1500*time.Millisecond) != "1.5s" {
		t.Error(interval(0), interval(1500*time.Millisecond))
	}
}
