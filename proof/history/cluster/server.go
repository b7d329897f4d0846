package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// readyTimeout is how long a server may take to start, recover, or be promoted.
const readyTimeout = time.Minute

// server is one data directory, and the server that runs on it, if any.
type server struct {
	number int
	dir    string
	log    string
	port   int
	env    []string
	more   []string // arguments of the server program
	member *member  // the Patroni that starts, ends and promotes it; nil: this program does

	timeline int    // that of its rows
	origin   uint64 // commits before this place in the WAL are not its own

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the server program has ended
}

func (c *Cluster) newServer(number int) (*server, error) {
	s := &server{
		number: number,
		dir:    filepath.Join(c.options.Dir, fmt.Sprintf("server-%d", number)),
		log:    filepath.Join(c.options.Dir, fmt.Sprintf("server-%d.log", number)),
		port:   serverPort + number,
		env:    os.Environ(),
		more:   []string{"-c", fmt.Sprintf("primary_conninfo=host=127.0.0.1 port=%d user=postgres", replicationPort)},
	}
	if c.options.Patroni {
		s.member = c.members[(number-1)%members]
		s.dir, s.log, s.port = s.member.dir, s.member.log, serverPort+s.member.number
	}
	if c.options.Clock {
		clock, err := c.clockEnvironment()
		if err != nil {
			return nil, err
		}
		s.env = append(s.env, clock...)
	}
	c.mu.Lock()
	c.servers = append(c.servers, s)
	c.mu.Unlock()
	return s, nil
}

func (s *server) initialize(configuration string) error {
	err := run("initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
	if err != nil {
		return err
	}
	if err := appendFile(filepath.Join(s.dir, "postgresql.conf"), configuration); err != nil {
		return err
	}
	return appendFile(filepath.Join(s.dir, "pg_hba.conf"), "host all all 10.94.0.0/16 trust\n")
}

func appendFile(name, text string) error {
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// start starts the server, and waits until it accepts connections.
func (s *server) start(ctx context.Context) error {
	if err := s.launch(); err != nil {
		return err
	}
	return s.ready(ctx)
}

func (s *server) launch() error {
	cmd := exec.Command("postgres", append([]string{"-D", s.dir, "-p", strconv.Itoa(s.port),
		"-c", fmt.Sprintf("proof.server=%d", s.number)}, s.more...)...)
	cmd.Env = s.env
	done, err := spawn(cmd, s.log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
	return nil
}

func (s *server) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable "+
		"connect_timeout=5 application_name=coordinator default_query_exec_mode=exec", s.port))
}

// ready waits until the server accepts connections.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if s.pid() == 0 {
			return fmt.Errorf("server %d has ended: see %s", s.number, s.log)
		}
		conn, err := s.connect(ctx)
		if err == nil {
			closeConn(conn)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("server %d does not accept connections: %w", s.number, err)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// pid returns the process of the server, or 0 if it does not run.
func (s *server) pid() int {
	if s.member != nil {
		return s.member.pid()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	select {
	case <-s.done:
		return 0
	default:
		return s.cmd.Process.Pid
	}
}

// stop shuts the server down, or ends it by force if that takes too long.
func (s *server) stop(mode Mode) {
	pid := s.pid()
	if pid == 0 {
		return
	}
	signal := syscall.SIGINT
	if mode == Immediate {
		signal = syscall.SIGQUIT
	}
	_ = syscall.Kill(pid, signal)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.killAll()
	}
}

// killAll ends all processes of the server at once.
func (s *server) killAll() {
	pid := s.pid()
	if pid == 0 {
		return
	}
	// so that it starts no others
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	processes := children(pid)
	for _, child := range processes {
		kill(child)
	}
	kill(pid)
	if s.member == nil {
		<-s.done
	}
	for _, process := range append(processes, pid) {
		waitGone(process)
	}
	if s.member == nil {
		_ = os.Remove(filepath.Join(s.dir, "postmaster.pid"))
	}
}

// noteOrigin takes down from where on the server's commits are its own.
func (s *server) noteOrigin(ctx context.Context, conn *pgx.Conn) error {
	var file, lsn string
	err := conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_current_wal_lsn()), pg_current_wal_lsn()::text`).Scan(&file, &lsn)
	if err != nil {
		return err
	}
	timeline, err := strconv.ParseInt(file[:8], 16, 32)
	if err != nil {
		return err
	}
	s.timeline = int(timeline)
	if s.timeline > 1 {
		if lsn, err = switchPoint(s.dir, s.timeline); err != nil {
			return err
		}
	}
	s.origin, err = parseLSN(lsn)
	return err
}
