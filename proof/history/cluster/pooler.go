package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// pooler is a PgBouncer before the present primary.
type pooler struct {
	dir string

	mu   sync.Mutex
	port int // of the primary
	cmd  *exec.Cmd
	done chan struct{}
}

func newPooler(dir string) (*pooler, error) {
	if _, err := exec.LookPath(find("pgbouncer")); err != nil {
		return nil, fmt.Errorf("PgBouncer is not installed: %w", err)
	}
	return &pooler{dir: dir}, nil
}

func (p *pooler) file(name string) string {
	return filepath.Join(p.dir, name)
}

// setTarget leads to another server; the connections to the last one are closed.
func (p *pooler) setTarget(port int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.port = port
	server := fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres user=postgres", port)
	err := replaceFile(p.file("pgbouncer.ini"), fmt.Sprintf(`[databases]
session = %s pool_mode=session pool_size=30
transaction = %s pool_mode=transaction pool_size=5
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
logfile = %s
max_client_conn = 500
server_login_retry = 1
server_connect_timeout = 3
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
log_connections = 0
log_disconnections = 0
`, server, server, poolerPort, p.file("pgbouncer.log")))
	if err != nil {
		return err
	}
	if p.cmd == nil {
		return p.start()
	}
	if p.cmd.Process.Signal(syscall.SIGHUP) != nil { // it has ended
		p.end()
		return p.start()
	}
	return nil
}

// start is called with the mutex held.
func (p *pooler) start() error {
	cmd := exec.Command(find("pgbouncer"), "-q", p.file("pgbouncer.ini"))
	done, err := spawn(cmd, p.file("pgbouncer.out"))
	if err != nil {
		return err
	}
	p.cmd, p.done = cmd, done
	return p.listens(done)
}

func (p *pooler) listens(done chan struct{}) error {
	for range 1000 {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", poolerPort))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-done:
			return fmt.Errorf("PgBouncer has ended: see %s", p.file("pgbouncer.out"))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return errors.New("PgBouncer does not listen")
}

func (p *pooler) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// end is called with the mutex held.
func (p *pooler) end() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	p.cmd = nil
}

// RestartPooler kills PgBouncer, and starts it again after a while.
func (c *Cluster) RestartPooler(ctx context.Context, d time.Duration) error {
	c.pooler.mu.Lock()
	defer c.pooler.mu.Unlock()
	c.pooler.end()
	pause(ctx, d)
	return c.pooler.start()
}

// StopPooler stops PgBouncer for a while by SIGSTOP.
func (c *Cluster) StopPooler(ctx context.Context, d time.Duration) error {
	c.pooler.mu.Lock()
	cmd := c.pooler.cmd
	c.pooler.mu.Unlock()
	if cmd == nil {
		return errors.New("PgBouncer does not run")
	}
	return Suspend(ctx, cmd.Process.Pid, d)
}
