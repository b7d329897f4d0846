package leaderelection

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the optional settings of an [Elector]. The zero value leads in
// session scope.
type Options struct {
	// Identity tells the candidates apart, in views, logs and warnings. It
	// must differ from process to process. By default, it is made of the host
	// name, the process ID and four hexadecimal digits.
	Identity string

	// Schema is the schema of the extension. By default, search_path decides.
	Schema string

	// Seats, if it is not 0, lets as many electors lead at the same time,
	// each in a seat of its own.
	Seats int

	// TTL, if it is not 0, has the elector lead by a lease, which expires if
	// it is not renewed for that long.
	TTL time.Duration

	// Heartbeat, if it is not 0, is for how long a job may go without a call
	// of [Term.Heartbeat] before another candidate takes over. The job is
	// cancelled after two thirds of it.
	Heartbeat time.Duration

	// StopTimeout is how long the job may take to stop, and OnElected and
	// OnOusted to return, before that is reported, 10 seconds by default.
	StopTimeout time.Duration

	// Logger gets elections and the ends of terms, and errors if OnError is
	// nil. The default is [slog.Default].
	Logger *slog.Logger

	// OnElected, if it is not nil, is called before the job starts.
	OnElected func(*Term)

	// OnOusted, if it is not nil, is called after the job has stopped, before
	// leadership is resigned.
	OnOusted func(*Term, Reason)

	// OnError, if it is not nil, is called with each error, in order. A call
	// that takes long delays nothing but the next one.
	OnError func(error)
}

// filled returns the options with their defaults, and an error if one is wrong.
func (o *Options) filled(pool *pgxpool.Pool, election string) (*Options, error) {
	f := *cmp.Or(o, &Options{})
	f.Identity = cmp.Or(f.Identity, newIdentity())
	f.StopTimeout = cmp.Or(f.StopTimeout, 10*time.Second)
	f.Logger = cmp.Or(f.Logger, slog.Default()).With("election", election, "identity", f.Identity)
	if f.OnElected == nil {
		f.OnElected = func(*Term) {}
	}
	if f.OnOusted == nil {
		f.OnOusted = func(*Term, Reason) {}
	}
	if f.OnError == nil {
		f.OnError = func(err error) { f.Logger.Error("leader election", "error", err) }
	}
	return &f, f.check(pool, election)
}

// check returns an error if the server would refuse an option.
func (o *Options) check(pool *pgxpool.Pool, election string) error {
	last := election
	if o.Seats > 0 {
		last += "/" + strconv.Itoa(o.Seats)
	}
	for _, rule := range []struct {
		good bool
		what string
	}{
		{pool != nil, "pool must not be nil"},
		{isName(election, 255) && isName(last, 255), "election must have 1 to 255 bytes in UTF-8, none of them zero"},
		{!strings.HasPrefix(election, "{") || !strings.HasSuffix(election, "}"), "election must not be enclosed in braces"},
		{isName(o.Identity, 255), "Identity must have 1 to 255 bytes in UTF-8, none of them zero"},
		{o.Schema == "" || isName(o.Schema, 63), "Schema must have 1 to 63 bytes in UTF-8, none of them zero"},
		{o.Seats >= 0 && o.Seats <= 10000, "Seats must be from 1 to 10000"},
		{o.TTL == 0 || o.TTL >= time.Second && o.TTL <= day, "TTL must be from one second to one day"},
		{o.Heartbeat == 0 || o.Heartbeat >= time.Second && o.Heartbeat <= day, "Heartbeat must be from one second to one day"},
		{o.StopTimeout > 0 && o.StopTimeout <= day, "StopTimeout must be positive, and at most one day"},
	} {
		if !rule.good {
			return errors.New("leaderelection: " + rule.what)
		}
	}
	return nil
}

const day = 24 * time.Hour

func isName(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

var functions = regexp.MustCompile(`\ble_`)

// le returns a statement with the extension's schema before its functions.
func (o *Options) le(sql string) string {
	if o.Schema == "" {
		return sql
	}
	return functions.ReplaceAllLiteralString(sql, pgx.Identifier{o.Schema}.Sanitize()+".le_")
}

var identity = rand.Uint32()

// newIdentity returns an identity that this process has not used before, nor
// most probably another one with the same host name and process ID.
func newIdentity() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%.200s:%d:%04x", cmp.Or(host, "unknown"), os.Getpid(), uint16(atomic.AddUint32(&identity, 1)))
}
