package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adhocore/gronx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	leaderelection "github.com/leader-election/leader_election/clients/go"
)

// program builds a program and runs it, until it is told to stop by what is returned, which
// returns its output.
func program(t *testing.T, source string, environment ...string) (stop func() string) {
	t.Helper()
	if os.Getenv("DATABASE_URL") == "" {
		t.Skip("needs a server: DATABASE_URL is not set")
	}
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var out bytes.Buffer
	command := exec.Command(binary)
	command.Stdout, command.Stderr, command.Env = &out, &out, append(os.Environ(), environment...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			t.Errorf("%v: %s", err, &out)
		}
		return out.String()
	}
}

const frame = `package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/adhocore/gronx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	leaderelection "github.com/leader-election/leader_election/clients/go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	BODY
	_, _, _ = minutely, daily, hourly
}
`

// TestReadme runs the first program of the README, and then one of all other parts.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../clients/go/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var sources [2]string
	readme = regexp.MustCompile("(?s)<!-- part of: [^\n]*\n```go\n.*?```").ReplaceAll(readme, nil) // tested there
	for i, part := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		if strings.HasPrefix(part[1], "for ") {
			part[1] = "go func() {\n" + part[1] + "}()\n"
		}
		sources[min(i, 1)] += part[1]
	}
	sources[1] = strings.Replace(frame, "BODY", sources[1], 1)
	for i, want := range []string{"a step of the job, with token", " leads, at http://10.0.0.7:8080"} {
		source := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(source, []byte(sources[i]), 0o600); err != nil {
			t.Fatal(err)
		}
		stop := program(t, source)
		time.Sleep(3 * time.Second)
		if out := stop(); !strings.Contains(out, want) {
			t.Error(out)
		}
	}
}

func TestReadiness(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	stop := program(t, "./readiness", "LISTEN="+address, "POD_NAME=pod-1")
	var body []byte
	for end := time.Now().Add(20 * time.Second); string(body) != "leading\n" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if answer, err := http.Get("http://" + address + "/readyz"); err == nil {
			body, _ = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
	}
	if out := stop(); string(body) != "leading\n" || !strings.Contains(out, "identity=pod-1") {
		t.Errorf("%q: %s", body, out)
	}
}

// TestS07Cron does a task each two seconds of the present hour of a time zone with odd minutes.
func TestS07Cron(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil || os.Getenv("DATABASE_URL") == "" {
		t.Skip("needs a server: ", err)
	}
	defer pool.Close()
	zone, err := time.LoadLocation("Asia/Kathmandu")
	if err != nil {
		t.Skip(err)
	}
	hour := time.Now().In(zone).Hour()
	expression := fmt.Sprintf("*/2 * %d,%d * * *", hour, (hour+1)%24)
	if !gronx.IsValid(expression) {
		t.Fatal(expression)
	}
	schedule, err := leaderelection.InZone(zone, leaderelection.ScheduleFunc(func(last time.Time) time.Time {
		next, _ := gronx.NextTickAfter(expression, last, false)
		return next
	}))
	if err != nil {
		t.Fatal(err)
	}
	elector, err := leaderelection.New(pool, fmt.Sprint("cron/", time.Now().UnixNano()), nil)
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	job, err := leaderelection.Every(pool, schedule, func(_ context.Context, _ pgx.Tx, due time.Time) error {
		if times = append(times, due); len(times) == 3 {
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := elector.Run(ctx, job); err != nil || len(times) < 3 || times[0].Second()%2 != 0 || times[2].Sub(times[0]) < 4*time.Second {
		t.Error(err, times)
	}
}
