package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"leader_election/proof/event"
)

// The ports of etcd, and of the members: N listens on serverPort + N, and its Patroni on patroniPort + N.
const (
	etcdPort    = 2379
	peerPort    = 2380
	patroniPort = 8000
)

// members is the number of Patronis.  The servers are on their data directories in turn.
const members = 2

// member is a Patroni, and the data directory of which it takes care.  A server that was the primary comes back as a
// standby, by pg_rewind if need be, and is a new server then, with a number of its own.
type member struct {
	number        int
	dir           string
	log           string
	file          string // the configuration of the Patroni
	configuration string // of the first server

	cmd  *exec.Cmd
	done chan struct{} // closed when the Patroni has ended
}

func (m *member) name() string {
	return fmt.Sprintf("member-%d", m.number)
}

// startEtcd starts the store in which the members elect their primary, and makes the members.
func (c *Cluster) startEtcd() error {
	peer := fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	client := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	c.etcd = exec.Command("etcd", "--data-dir", filepath.Join(c.options.Dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if _, err := spawn(c.etcd, filepath.Join(c.options.Dir, "etcd.log")); err != nil {
		return err
	}
	for n := 1; n <= members; n++ {
		m := &member{number: n, configuration: c.configuration()}
		file := filepath.Join(c.options.Dir, m.name())
		m.dir, m.log, m.file = file, file+".log", file+".json"
		c.members = append(c.members, m)
	}
	return nil
}

// start starts the Patroni unless it runs.  It makes, starts and rewinds the server.
func (m *member) start() error {
	if m.cmd != nil {
		return nil
	}
	postgres, err := exec.LookPath("postgres")
	if err != nil {
		return err
	}
	type object map[string]any
	api, address := fmt.Sprintf("127.0.0.1:%d", patroniPort+m.number), fmt.Sprintf("127.0.0.1:%d", serverPort+m.number)
	text, err := json.Marshal(object{
		"scope": "proof", "name": m.name(),
		"etcd3":    object{"host": fmt.Sprintf("127.0.0.1:%d", etcdPort)},
		"restapi":  object{"listen": api, "connect_address": api},
		"watchdog": object{"mode": "off"}, // it would reset the machine
		"bootstrap": object{
			"dcs": object{"ttl": 8, "loop_wait": 1, "retry_timeout": 3, "maximum_lag_on_failover": 1 << 30,
				"primary_start_timeout": 0, // rather fail over than restart
				"postgresql":            object{"use_pg_rewind": true, "parameters": settings(m.configuration)}},
			"initdb": []any{object{"encoding": "UTF8"}, object{"locale": "C"}, "no-sync"}},
		"postgresql": object{
			"listen": address, "connect_address": address, "data_dir": m.dir, "bin_dir": filepath.Dir(postgres),
			"authentication": object{"superuser": object{"username": "postgres"}, "replication": object{"username": "postgres"}},
			"basebackup":     []any{object{"checkpoint": "fast"}},
			"pg_hba":         []string{"host all,replication all 127.0.0.1/32 trust"},
			"remove_data_directory_on_rewind_failure": true},
	})
	if err != nil {
		return err
	}
	if err := replaceFile(m.file, string(text)); err != nil {
		return err
	}
	m.cmd = exec.Command("patroni", m.file)
	m.done, err = spawn(m.cmd, m.log)
	return err
}

// settings reads a configuration as PostgreSQL would.
func settings(configuration string) map[string]string {
	values := map[string]string{}
	for _, line := range strings.Split(configuration, "\n") {
		name, value, found := strings.Cut(line, " = ")
		if found && !strings.HasPrefix(line, "#") {
			values[name] = strings.Trim(value, "'")
		}
	}
	return values
}

// pid returns the process of the member's server, or 0 if it does not run.
func (m *member) pid() int {
	text, _ := os.ReadFile(filepath.Join(m.dir, "postmaster.pid"))
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(first)
	if _, _, _, ok := stat(pid); !ok {
		return 0
	}
	return pid
}

func (m *member) kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		<-m.done
		m.cmd = nil
	}
}

// await waits until a Patroni has seen to it that a question to its server is answered with true.
func (s *server) await(ctx context.Context, question string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*readyTimeout)
	defer cancel()
	for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		conn, err := s.connect(ctx)
		if err != nil {
			continue
		}
		var is bool
		err = conn.QueryRow(ctx, question).Scan(&is)
		closeConn(conn)
		if err == nil && is {
			return nil
		}
	}
	return fmt.Errorf("server %d does not become what it should: see %s", s.number, s.log)
}

// become waits until Patroni has made the member's server what a question asks for, and gives it its number then: what
// makes a standby copies that of the primary.
func (s *server) become(ctx context.Context, question string) error {
	if err := s.member.start(); err != nil {
		return err
	}
	if err := s.await(ctx, question); err != nil {
		return err
	}
	number := fmt.Sprintf("proof.server = %d\n", s.number)
	if err := appendFile(filepath.Join(s.dir, "postgresql.auto.conf"), number); err != nil {
		return err
	}
	if err := syscall.Kill(s.pid(), syscall.SIGHUP); err != nil {
		return err
	}
	return s.await(ctx, fmt.Sprintf("SELECT current_setting('proof.server') = '%d'", s.number))
}

func (s *server) becomePrimary(ctx context.Context) error {
	return s.become(ctx, "SELECT NOT pg_is_in_recovery()")
}

func (s *server) becomeStandby(ctx context.Context, timeline int) error {
	return s.become(ctx, fmt.Sprintf(`SELECT pg_is_in_recovery() AND EXISTS (
		SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming' AND received_tli = %d)`, timeline))
}

// endMember ends a primary, as is told, and has Patroni notice.  It returns what gathers the rows.
func (c *Cluster) endMember(
	ctx context.Context, old, next *server, loss Loss, cut time.Duration,
) (gather func(), err error) {
	m := old.member
	switch loss {
	case LoseNothing:
		if err := switchOver(m, next.member); err != nil {
			return nil, err
		}
		old.leave("")
		return func() { c.gatherHandedOver(old, m.dir, next) }, nil
	case LoseHost:
		m.kill()
	case LoseMuch:
		if err := c.outrun(old); err != nil {
			return nil, err
		}
		pause(ctx, cut)
	}
	// Patroni must not start the server before its files are copied
	if m.cmd != nil {
		_ = m.cmd.Process.Signal(syscall.SIGSTOP)
		defer m.cmd.Process.Signal(syscall.SIGCONT)
	}
	old.killAll()
	copied := filepath.Join(c.options.Dir, fmt.Sprintf("server-%d", old.number))
	if err := run("cp", "-a", m.dir, copied); err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(copied, "postmaster.pid"))
	old.leave(copied)
	return func() { c.gatherLast(old) }, nil
}

// leave takes a server from its member, as one that has ended.
func (s *server) leave(dir string) {
	s.member, s.dir, s.log = nil, dir, s.log+fmt.Sprintf(".%d", s.number)
}

// outrun begins terms that the standby never hears of, with tokens beyond those that were set aside before.
func (c *Cluster) outrun(s *server) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	senders, err := pgx.CollectRows(must(conn.Query(ctx, "SELECT pid FROM pg_stat_replication")), pgx.RowTo[int])
	if err != nil {
		return err
	}
	for _, pid := range senders {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	return useTokens(ctx, conn, tokenBlock+76)
}

// switchOver has a primary hand over to the other member.  Like promote, it obeys no context.
func switchOver(from, to *member) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	text, err := json.Marshal(map[string]string{"leader": from.name(), "candidate": to.name()})
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/switchover", patroniPort+from.number)
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		if pause(ctx, 200*time.Millisecond); ctx.Err() != nil {
			return errors.New("Patroni does not switch over: " + answer.Status)
		}
	}
}

// gatherHandedOver gathers the rows of a server that has handed over all of them.  Its member still has its WAL.
func (c *Cluster) gatherHandedOver(old *server, dir string, next *server) {
	if err := c.readHandedOver(old, dir, next); err != nil {
		c.gather(event.Record{Kind: event.Problem, Do: "checker", Server: old.number,
			Message: "the rows of a server are not known: " + err.Error()})
	}
}

func (c *Cluster) readHandedOver(old *server, dir string, next *server) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	old.dir = dir
	commits, err := old.commits()
	if err != nil {
		return err
	}
	conn, err := next.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	// all others are from before, or were written since
	rows, _, err := old.rows(ctx, conn, commits)
	if err != nil {
		return err
	}
	c.gather(rows...)
	return nil
}
