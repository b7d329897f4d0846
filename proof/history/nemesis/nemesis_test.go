package nemesis

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/cluster"
	"leader_election/proof/event"
)

// The test needs a namespace and a private installation, so it runs only if PROVE_DIR names a folder for its files.
const (
	directory = "PROVE_DIR"
	role      = "PROVE_TEST_CLIENT"
	seconds   = "PROVE_TEST_SECONDS"
	faultList = "PROVE_TEST_ONLY" // with commas
)

func TestMain(m *testing.M) {
	if client := os.Getenv(role); client != "" {
		number, _ := strconv.Atoi(client)
		work(number, os.Args[1], os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// work is a client: it leads by leases, and writes guarded rows, some by prepared transactions.
func work(number int, dsn, file string) {
	for op := int64(1); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var primary cluster.Primary
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &primary) != nil {
			panic(err)
		}
		place := strings.NewReplacer("HOST", primary.Host, "PORT", strconv.Itoa(primary.Port))
		conn, err := pgx.Connect(ctx, place.Replace(dsn))
		for err == nil {
			if err = writeOnce(ctx, conn, number, op); err == nil {
				op++
			}
		}
		if conn != nil {
			_ = conn.Close(ctx)
		}
		cancel()
		time.Sleep(50 * time.Millisecond)
	}
}

func writeOnce(ctx context.Context, conn *pgx.Conn, number int, op int64) error {
	var token *int64
	err := conn.QueryRow(ctx, "SELECT le_lease('job', '1 s', $1)", fmt.Sprint("client ", number)).Scan(&token)
	if err != nil || token == nil {
		time.Sleep(20 * time.Millisecond)
		return err
	}
	tables := []string{"guarded", "triggered", "guarded"}
	for range 5 {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT le_assert_leader('job', $1)", *token)
		if err == nil && op%5 == 0 {
			_, err = tx.Exec(ctx, "SAVEPOINT before")
		}
		if err == nil {
			_, err = tx.Exec(ctx, fmt.Sprintf("INSERT INTO %s (election, token, client, op) VALUES ('job', $1, $2, $3)",
				tables[op%3]), *token, number, op)
		}
		if err != nil {
			return err
		}
		if op%3 != 2 {
			err = tx.Commit(ctx)
		} else {
			gid := fmt.Sprintf("%d-%d-%d", number, os.Getpid(), op)
			if _, err = conn.Exec(ctx, fmt.Sprintf("PREPARE TRANSACTION '%s'", gid)); err == nil {
				_, err = conn.Exec(ctx, fmt.Sprintf("COMMIT PREPARED '%s'", gid))
			}
		}
		if err != nil {
			return err
		}
		op++
	}
	_, err = conn.Exec(ctx, "SELECT le_resign('job', $1)", *token)
	return err
}

// crew is the clients of the test.
type crew struct {
	c   *cluster.Cluster
	dir string

	mu       sync.Mutex
	commands map[int]*exec.Cmd
	ended    bool
}

func (c *crew) dsn(n int) (dsn string, host int) {
	a := c.c.Addresses()
	common := fmt.Sprintf("user=postgres sslmode=disable connect_timeout=2 default_query_exec_mode=exec "+
		"application_name='client %d' ", n)
	at := func(address, database string) string {
		host, port, _ := strings.Cut(address, ":")
		return common + fmt.Sprintf("host=%s port=%s dbname=%s", host, port, database)
	}
	switch n {
	case 1:
		return at(a.Proxy, "postgres"), 0
	case 2:
		return at(a.Pooler, "session"), 0
	case 3:
		return at(a.Pooler, "transaction"), 0
	}
	return at("HOST:PORT", "postgres"), n - 3
}

// file returns where a client finds the address of the primary.
func (c *crew) file(host int) string {
	a := c.c.Addresses()
	return append([]string{a.File}, a.Links...)[host]
}

func (c *crew) Pids() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := map[int]int{}
	for n, cmd := range c.commands {
		pids[n] = cmd.Process.Pid
	}
	return pids
}

func (c *crew) Restart(n int) error {
	dsn, host := c.dsn(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.commands[n]; old != nil {
		_ = old.Wait()
	}
	cmd := exec.Command(os.Args[0], dsn, c.file(host))
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", role, n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if host > 0 {
		if err := c.c.CommandInHost(host, cmd); err != nil {
			return err
		}
	}
	c.commands[n] = cmd
	return cmd.Start()
}

func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range c.commands {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func startAll(t *testing.T) (*cluster.Cluster, *crew, *event.Log, string) {
	if os.Getenv(directory) == "" {
		t.Skip(directory + " is not set")
	}
	dir := filepath.Join(os.Getenv(directory), t.Name())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c, err := cluster.Start(context.Background(),
		cluster.Options{Dir: dir, Seed: 1, Standby: true, Pooler: true, Link: true, Clock: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("started in %v", time.Since(begin))
	if err := c.EnsureTriggers(context.Background(), "job", "it's another"); err != nil {
		t.Fatal(err)
	}
	history := filepath.Join(dir, "coordinator.jsonl")
	log, err := event.Open(history)
	if err != nil {
		t.Fatal(err)
	}
	all := &crew{c: c, dir: dir, commands: map[int]*exec.Cmd{}}
	t.Cleanup(all.end)
	for n := 1; n <= 5; n++ {
		if err := all.Restart(n); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	return c, all, log, history
}

// conclude ends the clients, and checks that nothing is left, and that tokens grow in commit order.
func conclude(t *testing.T, c *cluster.Cluster, all *crew, log *event.Log, history string) {
	ctx := context.Background()
	all.end()
	prepared, err := c.EndPrepared(ctx, log)
	t.Logf("%d prepared transactions, error %v", prepared, err)
	for name, check := range map[string]func() error{
		"facts":     func() error { return c.Facts(ctx, log) },
		"leftovers": func() error { return c.Leftovers(ctx, log) },
		"log":       func() error { return c.LogProblems(log) },
	} {
		begin := time.Now()
		if err := check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, time.Since(begin))
	}
	records, err := event.Read(history)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	last := map[int]int64{}
	for _, r := range records {
		switch r.Kind {
		case event.Problem:
			t.Errorf("%+v", r)
		case event.Note:
			t.Logf("%s %s", r.Do, r.Message)
		case event.Fault:
			rows[r.Do]++
		case event.Row:
			rows[fmt.Sprintf("server %d %s %s", r.Server, r.Guard, r.Phase)]++
			rows[fmt.Sprintf("server %d client %d %s", r.Server, r.Client, r.Phase)]++
			if r.Order > 0 && r.Token < last[r.Server] {
				t.Errorf("token %d after %d", r.Token, last[r.Server])
			}
			last[r.Server] = max(last[r.Server], r.Token)
		}
	}
	t.Log(rows)
}

// TestEachFault injects each fault once.
func TestEachFault(t *testing.T) {
	c, all, log, history := startAll(t)
	n := &nemesis{cluster: c, clients: all, log: log, busy: map[string]bool{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range faults {
		for f.possible != nil && !f.possible(c) {
			time.Sleep(100 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		begin := time.Now()
		err := f.strike(ctx, n, rng)
		t.Logf("%s: %v %v", f.name, time.Since(begin), err)
		cancel()
		time.Sleep(300 * time.Millisecond)
	}
	if err := c.Heal(context.Background()); err != nil {
		t.Error(err)
	}
	conclude(t, c, all, log, history)
}

// TestRun injects faults at random.
func TestRun(t *testing.T) {
	duration, _ := strconv.Atoi(os.Getenv(seconds))
	if duration == 0 {
		t.Skip(seconds + " is not set")
	}
	c, all, log, history := startAll(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(duration)*time.Second)
	defer cancel()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	only := strings.FieldsFunc(os.Getenv(faultList), func(r rune) bool { return r == ',' })
	if err := Run(ctx, c, all, log, rng, only); err != nil {
		t.Error(err)
	}
	conclude(t, c, all, log, history)
}
