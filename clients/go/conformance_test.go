package leaderelection

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestConformance runs the cases of clients/conformance on the state machine.
func TestConformance(t *testing.T) {
	table, err := os.ReadFile("../conformance/cases.txt")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the table is in the repository, and not in the module: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, text := range regexp.MustCompile(`(?m)^== (?:.+\n)+`).FindAllString(string(table), -1) {
		name, lines, _ := strings.Cut(strings.TrimPrefix(text, "== "), "\n")
		t.Run(name, func(t *testing.T) {
			runCase(t, strings.Split(lines[strings.Index(lines, "\ngiven ")+1:], "\n"))
			if report := os.Getenv("CONFORMANCE_REPORT"); report != "" && !t.Failed() {
				file, err := os.OpenFile(report, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				fmt.Fprintf(file, "case %s: passed\n", name)
			}
		})
	}
}

// A world is the clock, the server and the program of a case.
type world struct {
	t                    *testing.T
	line                 string
	now                  time.Duration
	random               float64
	held, starved, shown []string
	m                    *machine // none for due times
	seats                bool
	schedule             Schedule
	last                 time.Time
	out                  []string
	queue                []func()
	token                int64
	asked, givenUp       action // the statement that waits for the case's answer
}

func seconds(word string) time.Duration {
	s, err := strconv.ParseFloat(word, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(math.Round(s * 1e9))
}

// text returns a word of a case as a text, or nil for none.
func text(word string) *string {
	switch {
	case word == "none":
		return nil
	case word == "empty":
		word = ""
	case strings.HasPrefix(word, `"`):
		word = strings.ReplaceAll(word[1:len(word)-1], `\0`, "\x00")
	case strings.Contains(word, "*"):
		one, times, _ := strings.Cut(word, "*")
		n, _ := strconv.Atoi(times)
		word = strings.Repeat(one, n)
	}
	return &word
}

func integer(word string) *int64 {
	if n, err := strconv.ParseInt(word, 10, 64); err == nil {
		return &n
	}
	return nil
}

func runCase(t *testing.T, lines []string) {
	w := &world{t: t, random: 1, token: 6, shown: strings.Fields("job cancel ousted error end told refused")}
	var given, random []string
	settings := map[string]*[]string{"hold": &w.held, "starve": &w.starved, "show": &w.shown, "random": &random}
	for i, line := range lines {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case words[0] == "given":
			given = words[1:]
			continue
		case settings[words[0]] != nil:
			*settings[words[0]] = append(*settings[words[0]], words[1:]...)
			continue
		case given != nil:
			for _, word := range random {
				w.random = seconds(word).Seconds()
			}
			w.begin(given)
			given = nil
		}
		w.line = lines[i]
		at := seconds(words[0])
		w.advance(at, words[1] == ">")
		if words[1] == ">" {
			if want := fmt.Sprintf("%v %s", at, strings.Join(words[2:], " ")); len(w.out) == 0 || w.out[0] != want {
				t.Fatalf("%s: this has followed: %q", line, w.out)
			}
			w.out = w.out[1:]
			continue
		}
		w.wantNothing()
		if words[1] == "<" {
			w.arrive(words[2:])
		} else if got, want := w.look(words[2:]), strings.Join(words[3:], " "); got != want {
			t.Fatalf("%s: %s", line, got)
		}
	}
	w.wantNothing()
}

func (w *world) wantNothing() {
	w.t.Helper()
	if len(w.out) > 0 {
		w.t.Fatalf("%s: this has followed before: %q", w.line, w.out)
	}
}

func (w *world) begin(given []string) {
	o := &Options{Identity: "x", StopTimeout: 10 * time.Second}
	election, way := "e", followWay
	begin := func() { w.m.campaign() }
	switch given[0] {
	case "every", "schedule":
		period, shift, _ := strings.Cut(given[1], "+")
		w.schedule = Interval(seconds(period))
		if given[0] == "schedule" {
			back := seconds(period) - seconds(shift)
			w.schedule = ScheduleFunc(func(last time.Time) time.Time {
				return Interval(seconds(period)).Next(last.Add(back)).Add(-back)
			})
		}
		w.last = epoch.Add(seconds(given[3]))
		return
	case "session", "lease":
		for i := 1; i < len(given); i += 2 {
			texts := map[string]*string{"election": &election, "identity": &o.Identity, "schema": &o.Schema}
			lengths := map[string]*time.Duration{"ttl": &o.TTL, "heartbeat": &o.Heartbeat, "stop_timeout": &o.StopTimeout}
			if name, word := given[i], given[i+1]; name == "once" {
				begin = func() { w.m.onTry(seconds(word)) }
			} else if name == "seats" {
				o.Seats, w.seats = int(*integer(word)), true
			} else if to := texts[name]; to != nil {
				*to = *text(word)
			} else {
				*lengths[name] = seconds(word)
			}
		}
		if err := o.check(new(pgxpool.Pool), election); err != nil {
			option := strings.Fields(strings.TrimPrefix(err.Error(), "leaderelection: "))[0]
			w.out = append(w.out, "0s refused "+strings.ToLower(strings.Replace(option, "StopTimeout", "stop_timeout", 1)))
			return
		}
		way = sessionWay(o.Heartbeat)
		if given[0] == "lease" {
			way = leaseWay(o.TTL)
		}
	}
	w.m = newMachine(way, election, o, func() time.Duration { return w.now }, func() float64 { return w.random })
	w.step(begin)
}

// step lets something happen, and then what follows from it at once.
func (w *world) step(event func()) {
	w.queue = append(w.queue, event)
	for len(w.queue) > 0 {
		event, w.queue = w.queue[0], w.queue[1:]
		for _, a := range w.m.step(w.now, event) {
			w.act(a)
		}
	}
}

func (w *world) then(event func()) { w.queue = append(w.queue, event) }

func (w *world) act(a action) {
	what, shown := a.what, a.what
	if what == "beat" {
		what = "confirm"
	}
	held := slices.Contains(w.held, map[string]string{"cancel": "job"}[what]) || slices.Contains(w.held, what)
	starved := slices.Contains(w.starved, what)
	switch {
	case a.serial > 0:
		if !starved {
			w.then(func() { w.m.onBegun(a.serial) })
		}
		if held || starved {
			w.asked = a
		} else {
			answer := w.usual(what)
			w.then(func() { w.m.onAnswer(a.serial, answer, nil) })
		}
		if what == "bid" && a.term != nil {
			shown += fmt.Sprint(" ", a.term.token)
		} else if a.version != nil {
			shown += fmt.Sprint(" ", *a.version)
		}
	case what == "close" && w.asked.serial > 0:
		w.givenUp, w.asked = w.asked, action{}
	case what == "elected" || what == "job":
		shown += fmt.Sprint(" ", a.term.token)
		if what == "job" && w.seats {
			shown += " " + a.term.election
		}
	case what == "ousted":
		shown += " " + string(a.reason)
	case what == "told" && a.leader == nil:
		shown += " none none none"
	case what == "told":
		shown = fmt.Sprintf("told %d %s %s", a.leader.Token, a.leader.Identity, *cmp.Or(a.leader.Value, text("none*1")))
	case what == "end" && a.err == nil && w.m.once && !w.m.ran:
		shown += " denied"
	case what == "cancel" && w.m.over != nil && !errors.Is(a.err, ErrLost) && !errors.Is(a.err, ErrInDoubt):
		w.t.Errorf("%s: the job is cancelled because of %v", w.line, a.err)
	case a.err != nil && what != "cancel":
		shown += " " + kindOf(a.err)
	}
	if !held && (what == "elected" || what == "ousted" || what == "cancel") {
		w.then(func() { w.m.onReturned(nil) })
	}
	if slices.Contains(slices.Concat(w.shown, w.held, w.starved), what) {
		w.out = append(w.out, fmt.Sprintf("%v %s", w.now, shown))
	}
}

var errJobFails = errors.New("it fails")

func kindOf(err error) string {
	var permanent *PermanentError
	var server *pgconn.PgError
	for kind, sentinel := range map[string]error{
		"lost": ErrLost, "in doubt": ErrInDoubt, "timeout": ErrTimeout, "no-connection": ErrNoConnection,
		"job": ErrJob, "slow job": ErrSlowJob, "callback": ErrCallback,
	} {
		if errors.Is(err, sentinel) {
			return kind
		}
	}
	if err == errJobFails {
		return "job"
	} else if errors.As(err, &permanent) {
		return string(permanent.Cause)
	} else if errors.As(err, &server) {
		return server.Code
	}
	return "broken"
}

// usual returns the answer to what is not held.
func (w *world) usual(statement string) answer {
	a := answer{leads: true, pid: 11}
	if statement == "bid" {
		w.token++
		token := w.token
		a.token = &token
		if w.seats {
			a.name = text("e/2")
		}
	}
	return a
}

func (w *world) advance(until time.Duration, inclusive bool) {
	for w.m != nil {
		wakeup := max(w.m.wakeup(), w.now)
		if wakeup > until || wakeup == until && !inclusive || w.m.phase == stopped && len(w.queue) == 0 {
			break
		}
		w.now = wakeup
		w.step(func() {})
	}
	w.now = max(w.now, until)
}

// read returns the answer that a case gives to a statement.
func read(statement string, words []string) (a answer) {
	switch statement {
	case "open":
		a.pid = uint32(*integer(words[0]))
	case "bid":
		a.token = integer(words[0])
	case "observe":
		a.version, a.token, a.identity, a.value = integer(words[0]), integer(words[1]), text(words[2]), text(words[3])
	default:
		a.leads = words[0] == "true"
		if len(words) > 1 {
			a.pid = uint32(*integer(words[1]))
		}
	}
	return a
}

func (w *world) arrive(words []string) {
	asked := w.asked
	if words[0] == "answer" || words[0] == "fails" || words[0] == "broken" {
		w.asked = action{}
	}
	switch words[0] {
	case "answer":
		w.step(func() { w.m.onAnswer(asked.serial, read(asked.what, words[1:]), nil) })
	case "late":
		w.step(func() { w.m.onAnswer(w.givenUp.serial, read(w.givenUp.what, words[2:]), nil) })
	case "fails":
		err := &pgconn.PgError{Code: words[1], Hint: strings.TrimPrefix(strings.Join(words[2:], " "), "hint: ")}
		w.step(func() { w.m.onAnswer(asked.serial, answer{}, err) })
	case "broken":
		w.step(func() { w.m.onBroken(errors.New("EOF")) })
	case "asleep":
		w.now = seconds(words[2])
	case "heartbeat":
		w.m.term.Heartbeat()
		w.step(func() {})
	case "stop":
		w.step(w.m.onStop)
	case "job", "elected", "ousted":
		failure := map[string]error{"fails": errJobFails}[words[1]]
		w.step(func() { w.m.onReturned(failure) })
	default:
		w.t.Fatalf("%s: what is that?", w.line)
	}
}

// look returns what a case asks for, without its first word.
func (w *world) look(words []string) string {
	switch words[0] {
	case "due":
		due, next, err := dueTime(w.schedule, w.last, epoch.Add(w.now))
		if w.last = next; err != nil || due.IsZero() {
			return "none"
		}
		return strconv.FormatFloat(due.Sub(epoch).Seconds(), 'g', -1, 64)
	case "leading", "not":
		if leading := w.m.term != nil && w.m.term.IsLeading(); leading != (words[0] == "leading") {
			return fmt.Sprint("leading: ", leading)
		}
		return strings.Join(words[1:], " ")
	case "state":
		return string(w.m.state())
	case "health":
		return string(w.m.health())
	}
	return fmt.Sprint(map[string]int64{"terms": w.m.terms, "confirmations": w.m.confirmations, "errors": w.m.errors}[words[0]])
}
